#include "octet/report/watch.h"

#include <algorithm>
#include <cmath>

#include "octet/report/html.h"
#include "octet/report/page.h"
#include "octet/report/svg.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {

// A browser without scripts reloads the whole page every 5 s.
constexpr const char* kHead = "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript><script src=\"/watch.js\" defer></script>";

std::string progress_of(const Run& run) {
  const std::int64_t step = run.metrics.empty() ? 0 : run.metrics.back().step, steps = std::max(run.info.steps, step);
  const double pct = steps > 0 ? 100 * static_cast<double>(step) / static_cast<double>(steps) : 0;
  std::string out;
  put(out, "<li><span class=\"who\">{}</span><span class=\"meter\"><i style=\"width:{:.2f}%\"></i></span><span class=\"where\">",
      escape(run.info.name), pct);
  put(out, "step {} of {}", telemetry::format_count(step), telemetry::format_count(steps));
  if (step >= steps) {
    out += ", done";
  } else if (const double left = run.metrics.empty() ? NAN : run.metrics.back().eta_s; left > 0) {
    put(out, ", about {} left", telemetry::format_duration(left));
  }
  return out + "</span></li>";
}

std::string live_section(const std::string& items, std::string_view written) {
  return fmt::format("<section class=\"live\"><ul>{}</ul><p class=\"hint\">{}This page reloads itself."
                     "<span class=\"lost\"> Nobody answers any more: this is the last state.</span></p></section>",
                     items, written.empty() ? "" : fmt::format("The newest record was written at {}. ", escape(written)));
}

}  // namespace

const char* const kWatchScript = R"js("use strict";
let tag = "";
async function reload() {
  try {
    const answer = await fetch("/", {cache: "no-store", headers: tag ? {"If-None-Match": tag} : {}});
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const folded = [...document.querySelectorAll("details")].map((d) => d.open);
      const [x, y] = [scrollX, scrollY];
      document.querySelector("main").replaceWith(page.querySelector("main"));
      document.title = page.title;
      document.querySelectorAll("details").forEach((d, i) => { if (i < folded.length) d.open = folded[i]; });
      scrollTo(x, y);
      tag = answer.headers.get("ETag") || "";
    }
    document.body.classList.toggle("is-lost", !answer.ok && answer.status !== 304);
  } catch {
    document.body.classList.add("is-lost");
  }
  setTimeout(reload, 2000);
}
setTimeout(reload, 2000);
)js";

std::string watched_page(std::string_view title, std::span<const Run> runs, const Comparison& comparison, std::string_view written) {
  std::string items;
  for (const Run& run : runs) items += progress_of(run);
  return render_html(title, runs, comparison, {.head = kHead, .top = live_section(items, written)});
}

std::string waiting_page(std::string_view title, std::string_view reason) {
  return render_html(title, {}, {}, {.head = kHead, .top = live_section("<li>Waiting: " + escape(reason) + "</li>", "")});
}

}  // namespace octet::report
