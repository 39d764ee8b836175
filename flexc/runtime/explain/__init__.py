"""`flexc.explain`: what is known of a call's mask and scores, and what follows.

`calls` reads what is to be explained, `facts` what was proved of it, `blocks` the
class of every block and what is counted of them, `gradients` how it is differentiated;
`report` prints it all, `picture` draws it.
"""

from flexc.runtime.explain.calls import explain
from flexc.runtime.explain.report import Explanation, Explanations

__all__ = ["Explanation", "Explanations", "explain"]
