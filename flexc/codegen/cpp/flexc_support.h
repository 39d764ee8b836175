// What every kernel that flexc emits includes: numbers, functions on them, tiles
// of them, products of tiles. No header of the standard library: a kernel compiles
// in a fraction of a second.
//
// Compiled with -fwrapv -fno-math-errno -fno-trapping-math -ffp-contract=fast.
// NaN, infinities and signed zeros behave as IEEE 754 says.
#pragma once

#include "flexc_math.h"

#include "flexc_tile.h"

#include "flexc_memory.h"

#include "flexc_matmul.h"

#include "flexc_stream.h"
