// The verdict on the whole job in the text of a failure: who else is to blame for it, and how we know.
#pragma once

#include "closeranks/status.h"

namespace closeranks::torch_binding {

// `status` with a further line, "verdict: SENTENCE", when it is a lost peer's or a timeout's, this process is recorded,
// and the job's files name another worker as the first cause. Else as it is. Reads those files: a few milliseconds for
// each worker, once per failure. Any thread, with or without the GIL.
Status with_verdict(Status status);

}  // namespace closeranks::torch_binding
