// The header that every emitted kernel includes: numbers, functions of numbers, tiles,
// products of tiles. It includes no header of the standard library, so that kernels
// compile quickly.
//
// Kernels are compiled with -fwrapv -fno-math-errno -fno-trapping-math
// -ffp-contract=fast. NaN, infinities and signed zeros behave as in IEEE 754.
#pragma once

#include "flexc_math.h"

#include "flexc_tile.h"

#include "flexc_memory.h"

#include "flexc_pairs.h"

#include "flexc_matmul.h"

#include "flexc_tiles.h"

#include "flexc_stream.h"
