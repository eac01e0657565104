// Messages, records and events as a person reads them, in transcripts of the simulator and in golden files.
#pragma once

#include <string>

#include "membership/events.h"
#include "membership/journal.h"
#include "membership/messages.h"

namespace closeranks::simulator {

std::string describe(ViewNumber view);
std::string describe(const membership::FromWorker& message);
std::string describe(const membership::ToWorker& message);
std::string describe(const membership::FromAgent& message);
std::string describe(const membership::ToAgent& message);
std::string describe(const membership::JournalRecord& record);
std::string describe(const membership::Event& event);

}  // namespace closeranks::simulator
