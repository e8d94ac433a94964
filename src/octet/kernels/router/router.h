// Routing of tokens to experts. Each token goes to the k experts with the largest logits; among equal logits, to the first
// (Shazeer et al., Outrageously Large Neural Networks, 2017; Jiang et al., Mixtral of Experts, 2024). With a bias b it goes to
// the experts with the largest p + b, and b changes nothing else (Wang et al., Auxiliary-Loss-Free Load Balancing, 2024).
//   p = softmax(logits),  lse = log sum exp logits
//   w[t, s] = p[t, e_s] / sum over s of p[t, e_s],  or w[t, s] = p[t, e_s] if weights are not normalised
// Two auxiliary losses regularise the router. Each is a mean over the S tokens of a sequence, times the number of its tokens that
// are trained on. So it can be added to the sum of their losses, whose mean is taken later:
//   balance  E * sum over e of f_e P_e. f_e is the fraction of the tokens that go to expert e (the fractions add up to k), and
//            P_e the mean of p[t, e] (Fedus et al., Switch Transformers, 2021; scaled as in Hugging Face transformers)
//   z        mean of lse^2 (Zoph et al., ST-MoE, 2022)
// A sequence may be split over several ranks (context parallelism). Its statistics are sums over its tokens, which the ranks
// must add up before they use them.
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// If logits are NaN, the token still goes to k different experts, but any of them, and its weights are NaN.
struct RouterForward {
  Tensor logits;      // [T, E] F32 or F64; B sequences of T / B tokens, one after another
  Tensor bias = {};   // [E] F32, optional
  Tensor experts;     // [T, k] I32, overwritten
  Tensor weights;     // [T, k] of the logits' dtype, overwritten
  Tensor statistics;  // [B, 2E + 1] of the logits' dtype, overwritten: assignments to each expert, sums of p, sum of lse^2
  bool normalise = true;
};
void router_forward(Stream& stream, Arena& scratch, const RouterForward& op);

// total[0] += balance loss, total[1] += z loss, summed over the sequences and without their coefficients.
// loads[e] += how often expert e was chosen.
struct RouterLosses {
  Tensor statistics;         // [B, 2E + 1], of whole sequences
  Tensor counted = {};       // [B] I32, optional: how many tokens of each sequence are trained on; absent: all S
  std::int64_t seq_len = 0;  // S
  double* total = nullptr;   // [2] device; accumulated into
  double* loads = nullptr;   // [E] device; accumulated into
};
void router_losses(Stream& stream, const RouterLosses& op);

// bias[e] += rate * sign(mean load - load of e). Does nothing if *found_inf is set.
struct RouterBiasUpdate {
  Tensor bias;                    // [E] F32, updated
  const double* loads = nullptr;  // [E] device: how often each expert was chosen; their sum is exact
  double rate = 0;
  const float* found_inf = nullptr;  // device scalar
};
void update_router_bias(Stream& stream, const RouterBiasUpdate& op);

struct RouterBackward {
  Tensor logits, experts, weights;  // as forward received and wrote them
  Tensor gweights;                  // [T, k]
  Tensor statistics;                // of whole sequences; absent: neither loss is used
  Tensor counted = {};              // as RouterLosses has it
  std::int64_t seq_len = 0;         // S
  double balance = 0, z = 0;        // coefficients of the two losses
  bool normalise = true;            // as forward had it
  Tensor glogits;                   // [T, E], overwritten
};
void router_backward(Stream& stream, const RouterBackward& op);

}  // namespace octet::kernels
