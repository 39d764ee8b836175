"""Derivatives of scalar code, IR to IR.

`partials` has one table: the local derivatives of each op by its operands, as chains
of linear steps. `reverse` sends adjoints through these chains backwards, `forward`
tangents forwards, and both read ops that they wrote themselves, so that second
derivatives are one applied to the other.

- Derivatives are computed in f32, or f64 where the value is f64: what is rounded to
  half precision on the way has an unrounded derivative.
- Factors that do not depend on what is differentiated by are gathered, and cancel:
  the derivative of c * tanh(x / c) has no c.
- A branch that `arith.select` does not take has a derivative of exactly 0, whatever
  is infinite in it: the choice is made last, of the finished product.
"""
