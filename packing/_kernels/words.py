"""Instructions on 64-bit words that numba has no name for."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def trailing_zeros(typing_context, word):
    """Count the trailing zero bits of a uint64 that is not 0."""
    signature = types.uint64(types.uint64)

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return signature, codegen


@intrinsic
def high_product(typing_context, left, right):
    """Upper 64 bits of the 128-bit product of two uint64."""
    signature = types.uint64(types.uint64, types.uint64)

    def codegen(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return signature, codegen
