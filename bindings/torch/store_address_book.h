// torch's Store as the address book of a plain job: how the members of a group find each other.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "closeranks/engine.h"

namespace closeranks::torch_binding {

// The book keeps `store`. Keys are the store's own: give it one prefix per group. Its functions block up to their
// deadline and must not be called with the GIL; a store's exception becomes a Status.
AddressBook address_book(c10::intrusive_ptr<c10d::Store> store);

}  // namespace closeranks::torch_binding
