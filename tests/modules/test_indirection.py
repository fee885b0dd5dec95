"""How many functions stand between a network and the equations of the paper."""


def test_a_forward_pass_enters_few_functions_in_few_files(module, capsys):
    program = module("indirection")
    functions = program.functions_per_file()
    assert "functional/attention.py" in functions
    assert functions.total() <= 60
    assert len(functions) <= 16
    program.main()
    total = f"{functions.total()} functions in {len(functions)} files"
    assert capsys.readouterr().out.splitlines()[-1] == total
