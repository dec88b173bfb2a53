"""Reports for people: one document, shown as text, on a terminal, or as HTML; why, differences, agreement.

Views load on demand: rich is imported by :mod:`moe_core.explain.as_rich` only.
"""

from moe_core.explain.outline import Context, explain

__all__ = ["Context", "explain"]
