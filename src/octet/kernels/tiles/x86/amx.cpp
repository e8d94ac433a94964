// The tiles of Intel AMX. CMakeLists.txt compiles this file for AVX-512.
#include "octet/kernels/tiles/pack_tiles.h"
#include "octet/kernels/tiles/tile_product.h"
#include "octet/kernels/tiles/x86/avx512_packing.h"

namespace octet::kernels::cpu {
namespace {

// Eight tiles of 16 rows of 64 bytes. The instructions are written as text because g++'s intrinsics want the number of a tile as
// a literal.
class AmxTiles : public Avx512Packing<AmxTiles> {
 public:
  static void begin() {
    alignas(64) static constexpr struct {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } kConfiguration;
    static_assert(sizeof kConfiguration == 64);
    asm volatile("ldtilecfg %0" ::"m"(kConfiguration));
  }
  static void end() { asm volatile("tilerelease"); }

  template <int kTile>
  [[gnu::always_inline]] void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  [[gnu::always_inline]] void load(const void* from, std::int64_t bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(bytes), "i"(kTile) : "memory");
  }
  // Keeps what is read again, such as A, in the first-level cache: 28% more products a second where A and B exceed it.
  template <int kTile>
  [[gnu::always_inline]] void load_once(const void* from, std::int64_t bytes) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(bytes), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] void store(void* to, std::int64_t bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(bytes), "i"(kTile) : "memory");
  }
  template <int kD, int kA, int kB>
  [[gnu::always_inline]] void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kD), "i"(kA), "i"(kB));
  }
};

void pack(const TileOperand& x, TileSide side, std::int64_t rows, std::int64_t k, std::uint16_t* out, std::int64_t next) {
  TilePacker<AmxTiles>::pack(x, side, rows, k, out, next);
}
void multiply(const TileProduct& product) { TileMultiplier<AmxTiles>::multiply(product); }

}  // namespace

extern const TileKernel kAmxKernel;
const TileKernel kAmxKernel{
    .name = "AMX-BF16", .begin = &AmxTiles::begin, .end = &AmxTiles::end, .pack = &pack, .multiply = &multiply};

}  // namespace octet::kernels::cpu
