"""The order in which tasks run."""

from machines import alone

from agcli.simulator.machine import Machine
from agcli.simulator.scheduler import Scheduler, Task


def test_tasks_that_wake_together_go_on_in_their_order():
    order, world = [], alone()
    machine = Machine(0, 100, world, world.begin(), units=("vector0",))

    def body(core):
        def run():
            machine.barrier("barrier_all_vec")
            order.append(core)

        return run

    Scheduler([Task(machine, core, "vector0", body(core)) for core in range(100)]).run()
    assert order == [*range(100)]
