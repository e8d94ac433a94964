// Draws what runs at which time on several streams or stages: a complete SVG file for light and dark pages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet::report {

enum class Tint : std::uint8_t { forward, backward, gather, reduce, other, forward_again, backward_again };
inline constexpr std::size_t kTints = 7;

// Times are in seconds. A box of no duration is drawn as a tick below its lane.
struct LaneBox {
  std::string label;  // drawn if the box has room for it
  std::string tip;    // shown while the pointer is over the box
  Tint tint = Tint::other;
  double begin = 0, end = 0;
};

struct Lane {
  std::string name, note;       // left and right of the lane
  std::vector<LaneBox> boxes;   // must not overlap
  std::vector<LaneBox> groups;  // drawn as brackets above the lane; without any, the lane has no room for them
};

// An arrow from a time on one lane to a time on another lane that waited for it. It is pale if the wait cost no time.
struct LaneLink {
  std::size_t from = 0, to = 0;
  double from_s = 0, to_s = 0;
  bool held_up = true;  // the wait cost time
};

// An interval that the picture shortens to a narrow strip.
struct LaneCut {
  double begin = 0, end = 0;
  std::string label;
};

struct Lanes {
  std::string title;
  std::vector<std::string> lines;  // below the title
  std::vector<Lane> lanes;
  std::vector<LaneLink> links;
  std::vector<LaneCut> cuts;  // in order, without overlaps
  struct Legend {
    Tint tint;
    std::string text;
  };
  std::vector<Legend> legend;
};

// Draws lanes one above the other, to scale except for the cuts. The picture is as wide as most labels need, within limits.
// Arrows are omitted if there are too many to tell apart.
std::string draw(const Lanes& lanes);

// Whether a file was made by draw(). `begin` holds its first 64 bytes or more.
bool is_lanes(std::string_view begin);

}  // namespace octet::report
