"""Differentiate scalar code, IR to IR.

`partials` has a table with the partial derivatives of each op by its operands, as
chains of linear steps. In `modes`, `pull_back` applies the chains to adjoints, last
step first, and `push_forward` to tangents. Both modes accept code that either mode
wrote, so a second derivative is one mode applied to the result of another.

- Derivatives are computed in f32, or in f64 if the value is f64. A value that is
  rounded to half precision has an unrounded derivative.
- Factors that do not depend on the differentiated variables are gathered, and cancel:
  the derivative of c * tanh(x / c) has no factor c.
- The derivative of a branch that `arith.select` does not take is exactly 0, also if the
  branch is infinite: the select is applied last, to the complete product.
"""
