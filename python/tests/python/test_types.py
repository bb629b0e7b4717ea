"""Test meshes, layouts, propagation and the table of transitions, from Python."""

import unittest

from says import raises

import addend


class Meshes(unittest.TestCase):
    def test_a_mesh_prints_as_it_was_built(self):
        mesh = addend.Mesh("dp_replicate=2 tp=4")
        self.assertEqual(str(mesh), "dp_replicate=2 tp=4")
        self.assertEqual(repr(mesh), "Mesh('dp_replicate=2 tp=4')")
        self.assertEqual(mesh.axes, {"dp_replicate": 2, "tp": 4})
        self.assertEqual(len(mesh), 8)
        self.assertEqual(mesh, addend.Mesh("dp_replicate=2 tp=4"))

    def test_ranks_and_groups_are_arithmetic(self):
        mesh = addend.Mesh("dp_replicate=2 tp=4")
        self.assertEqual(mesh.position(5), {"dp_replicate": 1, "tp": 1})
        self.assertEqual(mesh.group("tp", 5), [4, 5, 6, 7])
        self.assertEqual(mesh.group("dp_replicate", 5), [1, 5])
        self.assertEqual(mesh.position(0), {"dp_replicate": 0, "tp": 0})
        self.assertEqual(mesh.position(7), {"dp_replicate": 1, "tp": 3})
        for wrong in (8, -1):
            with raises(self, addend.InvalidError, "0 to", "7", str(wrong)):
                mesh.position(wrong)

    def test_an_unknown_axis_is_named(self):
        with raises(self, addend.InvalidError, "zz"):
            addend.Mesh("zz=2")
        with self.assertRaises(ValueError):
            addend.Mesh("dp=0")


class Layouts(unittest.TestCase):
    mesh = addend.Mesh("dp_shard=2 tp=4")

    def test_the_dual_of_replicated_is_partial(self):
        weight = self.mesh.layout("dp_shard=R tp=S1")
        self.assertEqual(str(weight.dual), "dp_shard=P tp=S1")
        self.assertEqual(weight.dual.dual, weight)

    def test_a_gradient_s_way_to_its_storage_is_derived(self):
        gradient = self.mesh.layout("dp_shard=P tp=S1")
        to_full = gradient.path_to(self.mesh.layout("dp_shard=R tp=S1"))
        self.assertEqual([(step.move, step.axes) for step in to_full], [("all_reduce", "dp_shard")])
        to_shard = gradient.path_to(self.mesh.layout("dp_shard=S0 tp=S1"))
        self.assertEqual([(step.move, step.axes) for step in to_shard], [("reduce_scatter", "dp_shard")])

    def test_parts_are_cut_by_floor(self):
        layout = self.mesh.layout("dp_shard=R tp=S1")
        self.assertEqual([layout.local_shape((3, 6), rank) for rank in range(4)], [(3, 1), (3, 2), (3, 1), (3, 2)])
        self.assertEqual(layout.local_shape((1, 6, 1, 1, 1, 5), 0), (1, 1, 1, 1, 1, 5))
        with raises(self, addend.InvalidError, "6", "7"):
            layout.local_shape((1,) * 7, 0)

    def test_a_move_that_is_not_in_the_table_says_what_is(self):
        layout = self.mesh.layout("dp_shard=R tp=S1")
        self.assertEqual(str(layout.after("all_gather", "tp", "R")), "dp_shard=R tp=R")
        with raises(self, addend.LayoutError, "test_types.py:", "all_reduce", "S(1)", "tp"):
            layout.after("all_reduce", "tp", "R")
        with raises(self, addend.InvalidError, "add"):
            layout.after("add", "tp", "R")
        for wrong in ("X", "S", "S6", "S6z", "S9", "Sz", "S0zz", "S²", ""):
            with raises(self, addend.InvalidError, *filter(None, [wrong]), "S0z"):
                layout.after("all_gather", "tp", wrong)

    def test_a_view_has_the_same_ranks(self):
        layout = self.mesh.layout("dp_shard=P tp=R")
        self.assertEqual(str(layout.view(addend.Mesh("dp_shard=2 ep=4"))), "dp_shard=P ep=R")
        with self.assertRaises(addend.InvalidError):
            layout.view(addend.Mesh("dp_shard=3"))


class Propagation(unittest.TestCase):
    mesh = addend.Mesh("dp_shard=2 tp=4")

    def test_a_contracted_sharded_dimension_leaves_a_partial(self):
        x, w = self.mesh.layout("dp_shard=S0 tp=S1"), self.mesh.layout("dp_shard=R tp=S0")
        self.assertEqual(str(addend.propagate("bk,kn->bn", x, w)), "dp_shard=S0 tp=P")

    def test_what_does_not_fit_names_operand_axis_and_repair(self):
        x, w = self.mesh.layout("dp_shard=S0 tp=R"), self.mesh.layout("dp_shard=I tp=R")
        with raises(self, addend.LayoutError, "linear", "operand 2", "I->R"):
            addend.propagate("bk,kn->bn", x, w, name="linear")
        with self.assertRaises(TypeError):
            addend.propagate("bk,kn->bn", x, w)

    def test_a_partial_sum_has_no_square(self):
        partial = self.mesh.layout("dp_shard=P tp=R")
        self.assertEqual(addend.propagate("b,b->b", partial, partial, linearity="additive"), partial)
        with self.assertRaises(addend.LayoutError):
            addend.propagate("b->b", partial, linearity="nonlinear")
        with raises(self, addend.InvalidError, "linearity"):
            addend.propagate("b->b", partial, linearity="square")

    def test_the_backward_of_every_transition_is_a_transition(self):
        table = addend.transitions()
        rows = {(row.move, row.source, row.to) for row in table}
        self.assertIn(("all_reduce", "P", "R"), rows)
        for row in table:
            self.assertIn((row.backward, row.backward_source, row.backward_to), rows)


class Errors(unittest.TestCase):
    def test_every_status_of_the_library_has_an_exception_of_its_name(self):
        from addend import _errors, _library

        name = _library.function("ad_status_name", _library.ctypes.c_char_p, _library.ctypes.c_int)
        statuses = [name(status).decode() for status in range(1, 64)]
        known = {status for status in statuses if status != "unknown"}
        self.assertEqual(known, set(_errors._BY_STATUS))
        for status in known:
            self.assertEqual(_errors.error_of(status, "words").status, status)

    def test_the_version_is_the_library_s(self):
        self.assertRegex(addend.__version__, r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
