// Formats numbers and units for people, in the same way on the console and in tables, plans, reports and messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octet::telemetry {

std::string format_count(std::int64_t count);   // "17,012", "-1,000"
std::string format_count(double count);         // rounded to a whole number; "nan" or "inf" if it is not finite
// "1 micro-batch", "1,200 steps": a count with its noun, which is given in the singular and whose plural is regular.
std::string format_count(std::int64_t count, std::string_view noun);
std::string format_compact(double count);       // "1.02 M", "614 K", "8.03 B", "312"
std::string format_bytes(std::uint64_t bytes);  // "61.2 GiB", "512 MiB", "17 B"
std::string format_gib(double gib);             // a number of GiB as format_bytes writes it; "?" if it is negative or not finite
// Reads "512", "500MB", "4GiB", "1.5 TB": K, M, G, T and KB, ... count in thousands, KiB, ... in 1024; small letters, too.
// Returns nothing for other text and for 2^63 bytes and more.
std::optional<std::int64_t> parse_bytes(std::string_view text);
std::string format_duration(double seconds);  // "0.4s", "42s", "3m12s", "1h04m", "2d03h"; "?" if unknown
// `digits` significant digits. Whole numbers are written in full, without an exponent from 1e-4 to 1e6: (874.6, 3) gives "875",
// (0.04128, 2) gives "0.041".
std::string format_significant(double value, int digits);
// Formats a finite number as "2.0638", or from 1e9 on as "1.0000e+200", which keeps it short.
std::string format_fixed(double value, int decimals);
std::string format_share(double share);  // a fraction of 1 as a percentage: 0.885 gives "88.5%"

// The kind of process to which a rate refers. A rank on GPUs has one GPU. On CPUs, ranks may share a processor, so the rate is
// that of the process.
enum class Worker : std::uint8_t { gpu, process };
Worker worker_of(std::string_view device);   // of a device's name, as run.json has it: "cuda" is a GPU
std::string_view rate_unit(Worker worker);   // "tok/s/gpu" or "tok/s/process": on the console and in tables of text
std::string_view rate_title(Worker worker);  // "tokens/s/GPU" or "tokens/s/process": in pages and pictures
std::string format_rate(double tokens_per_s, Worker worker);  // "17,012 tok/s/gpu"

}  // namespace octet::telemetry
