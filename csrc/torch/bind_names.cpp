// Names of the enumerators that cross into Python as strings.
#include <array>
#include <cctype>
#include <initializer_list>

#include "torch/bind.h"

namespace openspyre::device {

namespace {

std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != '_' && c != '-' && c != ' ') {
      out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  return out;
}

template <class Enum>
struct Name {
  const char* text;
  Enum value;
};

// The first name of a value is the one that is given back.
template <class Enum, size_t N>
Enum parse(const char* field, const std::string& text, const std::array<Name<Enum>, N>& names) {
  const std::string wanted = plain(text);
  std::string choices;
  for (const auto& name : names) {
    if (plain(name.text) == wanted) return name.value;
    choices += choices.empty() ? name.text : std::string(", ") + name.text;
  }
  throw py::value_error(std::string("unknown ") + field + " '" + text + "': one of " + choices);
}

template <class Enum, size_t N>
const char* name_of(Enum value, const std::array<Name<Enum>, N>& names) {
  for (const auto& name : names) {
    if (name.value == value) return name.text;
  }
  return "unknown";
}

using machine::Format;
using machine::HostType;
using machine::Isa;
using machine::Mode;
using machine::TieRule;

constexpr std::array<Name<Mode>, 2> kModes{{{"dl16", Mode::DL16}, {"ieee", Mode::IEEE}}};
constexpr std::array<Name<TieRule>, 5> kTies{{{"toward_positive", TieRule::TowardPositive},
                                              {"away_from_zero", TieRule::AwayFromZero},
                                              {"to_even", TieRule::ToEven},
                                              {"toward_zero", TieRule::TowardZero},
                                              {"to_odd", TieRule::ToOdd}}};
constexpr std::array<Name<Isa>, 3> kIsas{
    {{"portable", Isa::Portable}, {"avx2", Isa::AVX2}, {"avx512", Isa::AVX512}}};
constexpr std::array<Name<card::FunctionKind>, 2> kKinds{
    {{"pf", card::FunctionKind::PF}, {"vf", card::FunctionKind::VF}}};
constexpr std::array<Name<card::MemoryType>, 3> kMemoryTypes{
    {{"tensor", card::MemoryType::Tensor},
     {"program_static", card::MemoryType::ProgramStatic},
     {"program_dynamic", card::MemoryType::ProgramDynamic}}};
constexpr std::array<Name<card::Engine>, 5> kEngines{{{"h2d", card::Engine::H2D},
                                                      {"d2h", card::Engine::D2H},
                                                      {"compute", card::Engine::Compute},
                                                      {"host_compute", card::Engine::Host},
                                                      {"host", card::Engine::Host}}};
constexpr std::array<Name<card::HazardMode>, 3> kHazards{{{"off", card::HazardMode::Off},
                                                          {"check", card::HazardMode::Check},
                                                          {"insert", card::HazardMode::Insert}}};
constexpr std::array<Name<HostType>, 26> kHostTypes{{{"F16", HostType::F16},
                                                     {"BF16", HostType::BF16},
                                                     {"F32", HostType::F32},
                                                     {"F8_E4M3FN", HostType::F8_E4M3FN},
                                                     {"F8_E5M2", HostType::F8_E5M2},
                                                     {"I8", HostType::I8},
                                                     {"I16", HostType::I16},
                                                     {"I32", HostType::I32},
                                                     {"I64", HostType::I64},
                                                     {"U8", HostType::U8},
                                                     {"BOOL", HostType::BOOL},
                                                     {"RAW1", HostType::RAW1},
                                                     {"RAW2", HostType::RAW2},
                                                     {"RAW4", HostType::RAW4},
                                                     {"RAW8", HostType::RAW8},
                                                     {"RAW16", HostType::RAW16},
                                                     {"float16", HostType::F16},
                                                     {"bfloat16", HostType::BF16},
                                                     {"float32", HostType::F32},
                                                     {"float8_e4m3fn", HostType::F8_E4M3FN},
                                                     {"float8_e5m2", HostType::F8_E5M2},
                                                     {"int8", HostType::I8},
                                                     {"int16", HostType::I16},
                                                     {"int32", HostType::I32},
                                                     {"int64", HostType::I64},
                                                     {"uint8", HostType::U8}}};

}  // namespace

Mode parse_mode(const std::string& text) { return parse("mode", text, kModes); }
TieRule parse_tie(const std::string& text) { return parse("tie rule", text, kTies); }
HostType parse_host_type(const std::string& text) { return parse("host type", text, kHostTypes); }
Isa parse_isa(const std::string& text) { return parse("instruction set", text, kIsas); }
card::FunctionKind parse_kind(const std::string& text) {
  return parse("function kind", text, kKinds);
}
card::MemoryType parse_memory_type(const std::string& text) {
  return parse("memory type", text, kMemoryTypes);
}
card::Engine parse_engine(const std::string& text) { return parse("engine", text, kEngines); }
card::HazardMode parse_hazards(const std::string& text) {
  return parse("hazard mode", text, kHazards);
}

Format parse_format(const std::string& text) {
  std::array<Name<Format>, machine::kFormatCount> names{};
  for (int i = 0; i < machine::kFormatCount; ++i) {
    const auto format = static_cast<Format>(i);
    names[static_cast<size_t>(i)] = {machine::format_name(format), format};
  }
  return parse("format", text, names);
}

const char* mode_name(Mode mode) { return name_of(mode, kModes); }
const char* tie_name(TieRule tie) { return name_of(tie, kTies); }
const char* kind_name(card::FunctionKind kind) { return name_of(kind, kKinds); }
const char* hazards_name(card::HazardMode mode) { return name_of(mode, kHazards); }
const char* memory_type_name(card::MemoryType type) { return name_of(type, kMemoryTypes); }

const char* status_name(card::TimelineEntry::Status status) {
  switch (status) {
    case card::TimelineEntry::Status::Pending:
      return "pending";
    case card::TimelineEntry::Status::Done:
      return "done";
    case card::TimelineEntry::Status::Failed:
      return "failed";
    case card::TimelineEntry::Status::Cancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace openspyre::device
