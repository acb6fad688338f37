import ast
import inspect

from gantrymq.model.errors import ErrorCode
from gantrymq_gateways.cloudevents.wire import problems


def test_every_failure_has_one_row():
    tree = ast.parse(inspect.getsource(problems))
    tables = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    rows = [ast.unparse(key) for key in max(tables, key=lambda table: len(table.keys)).keys]
    assert sorted(rows) == sorted(f"ErrorCode.{code.name}" for code in ErrorCode)
