"""measuring.vectors: what clients send is kept as it was, within its bound, and changes nothing else."""

import numpy as np
from safetensors.numpy import load_file

from runs import assert_same_states, small

CONFIG = small("checkpoints.every = 1", rounds=4)
KEPT = "measuring.vectors.mb=1"


def kept(folder):
    """{round: {client: its arrays}}"""
    rounds = {int(path.name[6:]): path for path in sorted(folder.path.glob("vectors/round-*"))}
    return {k: {int(f.stem[5:]): load_file(f) for f in sorted(path.iterdir())} for k, path in rounds.items()}


def test_every_message_of_a_run_is_kept_and_no_other_bit_changes(run_in_threads, run_in_processes):
    folder, without = run_in_processes(CONFIG, KEPT), run_in_threads(CONFIG)
    assert_same_states(folder, without)
    found = kept(folder)
    assert list(found) == [1, 2, 3, 4]
    for round, files in found.items():
        for node, theta in folder.theta(round - 1).items():  # D-PSGD sends theta as the round begins
            neighbours = sorted(((node - 1) % 4, (node + 1) % 4))
            assert set(files[node]) == {"theta.0", f"sent.0.{neighbours[0]},{neighbours[1]}"}
            assert all(np.array_equal(array, theta) for array in files[node].values())


def test_what_a_codec_makes_of_a_vector_is_kept_beside_theta(run_in_threads):
    folder = run_in_threads(CONFIG, KEPT, "transport.codec=float16", "measuring.vectors.every=3")
    assert list(kept(folder)) == [1, 4]
    for arrays in kept(folder)[4].values():
        sent = [array for name, array in arrays.items() if name.startswith("sent")]  # one for each neighbour
        rounded = arrays["theta.0"].astype(np.float16).astype(np.float32)
        assert len(sent) == 2
        assert all(np.array_equal(array, rounded) for array in sent)


def test_it_ends_where_its_bound_is_reached_and_of_those_who_are_not_named_nothing_is_kept(run_in_threads):
    bound = 0.02  # 3 of 4 rounds: theta and one vector for all, 2,600 bytes each, and the head of the file
    folder = run_in_threads(CONFIG, f"measuring.vectors.mb={bound}", "measuring.vectors.clients=[2]")
    assert {k: list(files) for k, files in kept(folder).items()} == {1: [2], 2: [2], 3: [2]}
    assert sum(path.stat().st_size for path in folder.path.glob("vectors/*/*")) <= 1e6 * bound
    ((told,),) = folder.rows("SELECT detail FROM event WHERE kind = 'warning'")
    assert told == "no messages of client 2 are kept from round 4 on: measuring.vectors.mb is used up"
