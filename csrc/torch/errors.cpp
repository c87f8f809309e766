#include "torch/errors.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <stdexcept>

#include "card/runtime.h"
#include "torch/interrupt.h"

namespace openspyre::device {
namespace {

ErrorTranslator translator = nullptr;

// Any code will do for torch.AcceleratorError.error_code; these are ours.
enum AcceleratorCode : int { kBadDevice = 101, kCardError = 999 };

[[noreturn]] void throw_accelerator_error(int code, const std::string& text) {
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, code, text);
}

}  // namespace

void set_error_translator(ErrorTranslator function) noexcept { translator = function; }

void rethrow_for_torch() {
  try {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (const card::OutOfMemory& e) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, e.what());
  } catch (const std::invalid_argument& e) {
    TORCH_CHECK_VALUE(false, e.what());
  } catch (const card::Interrupted&) {
    throw_python_interrupt();
  } catch (const std::runtime_error& e) {
    // StreamFailure, Deadlock, BadToken, ForkedChild, NoBacking, ConfigError, ...
    if (translator != nullptr) translator(std::current_exception());
    throw_accelerator_error(kCardError, e.what());
  }
  // Everything else (bad_alloc, logic_error, exceptions of Python) passes as it is.
}

void throw_bad_device(int64_t index) {
  const int count = card::Runtime::get().device_count();
  const std::string& configuration_error = card::Runtime::get().config().error;
  std::string text = "spyre:" + std::to_string(index) + " is not a device of this process: ";
  if (!configuration_error.empty()) {
    throw_accelerator_error(kBadDevice, text + configuration_error);
  }
  if (count == 0) {
    text += "no spyre device is configured";
  } else {
    text += std::to_string(count) + (count == 1 ? " device is" : " devices are") +
            " visible (spyre:0" + (count > 1 ? " to spyre:" + std::to_string(count - 1) : "") + ")";
  }
  throw_accelerator_error(
      kBadDevice, text + ". More cards: OPENSPYRE_CARDS; virtual functions: OPENSPYRE_DEVICES.");
}

}  // namespace openspyre::device
