// Routing of tokens to experts: each token goes to the k experts of its largest logits, of equal ones to the first (Shazeer et
// al., Outrageously Large Neural Networks, 2017; Jiang et al., Mixtral of Experts, 2024).
//   p = softmax(logits),  lse = log sum exp logits,  w[t, s] = p[t, e_s] / sum over s of p[t, e_s]
// Two losses keep it in shape. Of each sequence of S tokens, as S times its mean, so that they add up as token losses do:
//   balance  E sum over e of f_e P_e: f_e is the share of the tokens that go to e (their sum is k), P_e the mean of p[t, e]
//   (Fedus
//            et al., Switch Transformers, 2021; scaled as transformers does)
//   z        mean of lse^2 (Zoph et al., ST-MoE, 2022)
// A sequence may be held in parts by several ranks: its statistics are sums over its tokens, to be added up before they are used.
#pragma once

#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/tensor/tensor.h"

namespace octet::kernels {

// Logits that are not numbers go anywhere, but to k different experts, with weights that are not numbers.
struct RouterForward {
  Tensor logits;      // [T, E] F32 or F64, B sequences of T / B tokens one after the other
  Tensor experts;     // [T, k] I32, overwritten
  Tensor weights;     // [T, k] of the logits' dtype, overwritten
  Tensor statistics;  // [B, 2E + 1] of the logits' dtype, overwritten: assignments to each expert, sums of p, sum of lse^2
};
void router_forward(Queue& queue, Arena& scratch, const RouterForward& op);

// total[0] += balance, total[1] += z, summed over sequences of S tokens: what the coefficients are multiplied with.
struct RouterLosses {
  Tensor statistics;         // [B, 2E + 1] of whole sequences
  std::int64_t seq_len = 0;  // S
  double* total = nullptr;   // device
};
void router_losses(Queue& queue, const RouterLosses& op);

struct RouterBackward {
  Tensor logits, experts, weights;  // as forward had and wrote them
  Tensor gweights;                  // [T, k]
  Tensor statistics;                // of whole sequences; absent: neither loss counts
  std::int64_t seq_len = 0;
  double balance = 0, z = 0;  // coefficients of the two losses
  Tensor glogits;             // [T, E], overwritten
};
void router_backward(Queue& queue, const RouterBackward& op);

}  // namespace octet::kernels
