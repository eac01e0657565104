#include "store_address_book.h"

#include <exception>
#include <string>
#include <vector>

namespace closeranks::torch_binding {
namespace {

// One line: torch's store errors carry a C++ backtrace behind their first.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Status store_failed(const std::string& what, const std::string& key, const std::exception& error) {
  return {Fault::system, Move::retry,
          "the store of torch.distributed did not " + what + " '" + key + "': " + first_line(error.what()) +
              "; check that the process of rank 0, which serves it, is alive"};
}

}  // namespace

AddressBook address_book(c10::intrusive_ptr<c10d::Store> store) {
  AddressBook book;
  book.set = [store](const std::string& key, const std::string& value) -> Status {
    try {
      store->set(key, value);
      return {};
    } catch (const std::exception& error) {
      return store_failed("take", key, error);
    }
  };
  book.get = [store](const std::string& key, std::chrono::milliseconds deadline) -> Result<std::string> {
    try {
      store->wait({key}, deadline);
      return store->get_to_str(key);
    } catch (const std::exception& error) {
      // The caller tells a missing member by it; the store does not say which of its waits ran out.
      Status status(Fault::timeout, Move::retry, store_failed("give", key, error).message());
      return status;
    }
  };
  return book;
}

}  // namespace closeranks::torch_binding
