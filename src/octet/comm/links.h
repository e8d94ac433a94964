// Finds ranks that cannot reach each other. All ranks reach rank 0, through which they meet, so only the two ranks of a link
// can tell that it is broken.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/comm/rendezvous.h"
#include "octet/comm/socket.h"

namespace octet::comm {

class Links {
 public:
  // Listens at this machine's `address`, where others try to reach it, and tells them where. The rendezvous outlives the object.
  Links(Rendezvous& rendezvous, const std::string& address);

  struct Broken {
    std::vector<int> ranks;  // at the other ends, in order
    std::string text;        // a sentence that names both ends of each link; "": no link is broken
  };
  // Tries to connect to each of these ranks, 16 at a time, and returns the links that give no answer within kAnswerS. A rank
  // that has ended refuses the connection; its link is not broken. Returns no links if the rendezvous is gone.
  Broken broken(const std::vector<int>& ranks) const;
  static constexpr double kAnswerS = 2;

 private:
  Rendezvous& rendezvous_;
  Descriptor listener_;
  std::string self_;  // "rank 1 on node1 (10.0.0.2)"
};

}  // namespace octet::comm
