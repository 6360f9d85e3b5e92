// Fills the columns of a trace with simdjson On-Demand: the peer of tracekit's raw scan.
//
//     simdjson_columns TRACE.json
//
// The columns: ph, cat, name, pid, tid as dictionary codes; ts and dur as exact int64 nanoseconds;
// correlation, External id, stream, device and bytes of args as int64. Every other value is passed
// over, which is what On-Demand is good at: tracekit's scan keeps those too.

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "simdjson.h"

using simdjson::ondemand::object;
using simdjson::ondemand::value;

constexpr int64_t ABSENT = std::numeric_limits<int64_t>::min();

// Codes of distinct texts, in the order of first use: open addressing, texts in one growing buffer.
class Dictionary {
 public:
  int32_t code(std::string_view text) {
    const size_t hash = std::hash<std::string_view>{}(text);
    for (size_t slot = hash & (slots_.size() - 1);; slot = (slot + 1) & (slots_.size() - 1)) {
      const int32_t found = slots_[slot];
      if (found < 0) return add(text, hash, slot);
      if (hashes_[found] == hash && this->text(found) == text) return found;
    }
  }

  std::string_view text(int32_t code) const {
    const size_t start = code == 0 ? 0 : ends_[code - 1];
    return {texts_.data() + start, ends_[code] - start};
  }

  int32_t find(std::string_view text) const {
    for (size_t code = 0; code < ends_.size(); ++code)
      if (this->text(static_cast<int32_t>(code)) == text) return static_cast<int32_t>(code);
    return -1;
  }

 private:
  int32_t add(std::string_view text, size_t hash, size_t slot) {
    const auto code = static_cast<int32_t>(ends_.size());
    texts_.append(text);
    ends_.push_back(texts_.size());
    hashes_.push_back(hash);
    slots_[slot] = code;
    if (ends_.size() * 2 > slots_.size()) grow();
    return code;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, -1);
    for (size_t code = 0; code < hashes_.size(); ++code) {
      size_t slot = hashes_[code] & (slots_.size() - 1);
      while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = static_cast<int32_t>(code);
    }
  }

  std::vector<int32_t> slots_ = std::vector<int32_t>(1024, -1);
  std::vector<size_t> hashes_;
  std::vector<size_t> ends_;
  std::string texts_;
};

struct Coded {
  Dictionary dictionary;
  std::vector<int32_t> codes;
};

struct Columns {
  Coded ph, cat, name, pid, tid;
  std::vector<int64_t> ts, dur, correlation, external_id, stream, device, bytes;
};

// Nanoseconds of a decimal number of microseconds, exact; digits beyond the third are cut.
int64_t nanoseconds(std::string_view token) {
  int64_t whole = 0;
  size_t at = token.size() > 0 && token[0] == '-';
  const bool negative = at == 1;
  for (; at < token.size() && token[at] >= '0' && token[at] <= '9'; ++at)
    whole = whole * 10 + (token[at] - '0');
  int64_t fraction = 0, unit = 100;
  if (at < token.size() && token[at] == '.')
    for (++at; at < token.size() && token[at] >= '0' && token[at] <= '9'; ++at, unit /= 10)
      fraction += (token[at] - '0') * unit;
  const int64_t ns = whole * 1000 + fraction;
  return negative ? -ns : ns;
}

// The integer, or ABSENT where the value is of another kind (AMD writes `bytes` as a string too).
int64_t integer(value& field) {
  int64_t result;
  return field.get_int64().get(result) == simdjson::SUCCESS ? result : ABSENT;
}

void read_args(object args, Columns& columns) {
  for (auto field : args) {
    const std::string_view key = field.escaped_key();
    value member = field.value();
    if (key == "correlation") columns.correlation.back() = integer(member);
    else if (key == "External id") columns.external_id.back() = integer(member);
    else if (key == "stream") columns.stream.back() = integer(member);
    else if (key == "device") columns.device.back() = integer(member);
    else if (key == "bytes") columns.bytes.back() = integer(member);
  }
}

void read_event(object event, Columns& columns) {
  Coded* const coded[] = {&columns.ph, &columns.cat, &columns.name, &columns.pid, &columns.tid};
  for (Coded* column : coded) column->codes.push_back(-1);
  std::vector<int64_t>* const plain[] = {
      &columns.ts,     &columns.dur,    &columns.correlation, &columns.external_id,
      &columns.stream, &columns.device, &columns.bytes};
  for (auto* column : plain) column->push_back(ABSENT);
  const auto set = [](Coded& column, std::string_view text) {
    column.codes.back() = column.dictionary.code(text);
  };
  for (auto field : event) {
    const std::string_view key = field.escaped_key();
    value member = field.value();
    if (key == "ph") set(columns.ph, member.get_string());
    else if (key == "cat") set(columns.cat, member.get_string());
    else if (key == "name") set(columns.name, member.get_string());
    else if (key == "pid") set(columns.pid, member.raw_json_token());  // a number or a string
    else if (key == "tid") set(columns.tid, member.raw_json_token());
    else if (key == "ts") columns.ts.back() = nanoseconds(member.raw_json_token());
    else if (key == "dur") columns.dur.back() = nanoseconds(member.raw_json_token());
    else if (key == "args") read_args(member.get_object(), columns);
  }
}

Columns read_columns(const char* path) {
  const simdjson::padded_string json = simdjson::padded_string::load(path);
  simdjson::ondemand::parser parser;
  simdjson::ondemand::document document = parser.iterate(json);
  Columns columns;
  for (auto element : document["traceEvents"].get_array())
    read_event(element.get_object(), columns);
  return columns;
}

double memory_mb(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.compare(0, std::strlen(field), field) == 0)
      return std::stod(line.substr(std::strlen(field) + 1)) * 1024 / 1e6;
  return 0;
}

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval time) { return time.tv_sec + time.tv_usec / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const double resident = memory_mb("VmRSS"), cpu = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  Columns columns;
  try {
    columns = read_columns(argv[1]);
  } catch (const simdjson::simdjson_error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[1], error.what());
    return 1;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double cpu_used = cpu_seconds() - cpu;

  const int32_t kernel = columns.cat.dictionary.find("kernel");
  int64_t kernels = 0, kernel_ns = 0, correlations = 0;
  for (size_t row = 0; row < columns.cat.codes.size(); ++row) {
    if (columns.correlation[row] != ABSENT) correlations += 1;
    if (columns.cat.codes[row] != kernel) continue;
    kernels += 1;
    kernel_ns += columns.dur[row];
  }
  std::printf(
      "{\"seconds\": %.4f, \"cpu\": %.4f, \"peak_mb_net_of_imports\": %.1f, \"rows\": %zu, "
      "\"kernels\": %lld, \"kernel_ns\": %lld, \"correlations\": %lld, \"version\": \"%s %s\"}\n",
      seconds.count(), cpu_used, memory_mb("VmHWM") - resident, columns.cat.codes.size(),
      static_cast<long long>(kernels), static_cast<long long>(kernel_ns),
      static_cast<long long>(correlations), SIMDJSON_VERSION,
      simdjson::builtin_implementation()->name().c_str());
}
