PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PACKAGES := topology transport node launcher metrics
TYPES := build/types

# Each of a run's processes would compile all its modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test chaos damage failpoints liveness fuzz soak lint format typecheck bench \
	bench-arms bench-asynchronous bench-adversaries bench-alike bench-board bench-claims bench-codecs bench-collaboration \
	bench-digits bench-delays bench-drift bench-efficiency bench-exchange bench-groups bench-images bench-maps \
	bench-measuring bench-memory bench-nearest bench-own bench-parts bench-peers bench-placement bench-planner bench-privacy \
	bench-report bench-ring bench-scale bench-school bench-seeking bench-selective bench-selective-mnist \
	bench-selective-others bench-stragglers bench-table4 bench-tasks bench-tune bench-twin bench-watching docs \
	gallery pictures site sizing clean

help:  ## Show these targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 26

setup: $(INSTALLED)  ## Install everything into .venv (again when pyproject.toml has changed).

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

demo: setup  ## Run twenty client processes and compare seven methods.
	$(BIN)/sheafgossip demo

test: setup  ## Run all tests.
	$(BIN)/python -m pytest -n 4 --dist worksteal

chaos: setup  ## Hold random runs full of faults and kills against their plans; SEEDS=0-499, METHODS=ifca,dfca, SHRINK=SEED (5 s a seed).
	PYTHONPATH=tests $(BIN)/python -m chaos $(if $(SHRINK),--shrink $(SHRINK),--seeds $(or $(SEEDS),0-49)) \
		$(if $(METHODS),--methods $(METHODS)) --jobs $(or $(JOBS),2)

failpoints: setup  ## Kill and hold up each process at each named point (1 minute).
	SHEAFGOSSIP_EVERY_FAILPOINT=1 $(BIN)/python -m pytest -q -n 2 tests/integration/test_failpoints.py

liveness: setup  ## Play 100,000 random plans without processes: each must come to its end (25 minutes).
	SHEAFGOSSIP_LIVENESS=0-99999 $(BIN)/python -m pytest -q -n 2 tests/launcher/planner/test_liveness.py

damage: setup  ## Damage each file of an interrupted run in each way, and take it up (2 minutes).
	SHEAFGOSSIP_DAMAGE=all $(BIN)/python -m pytest -q tests/integration/test_damage.py

fuzz: setup  ## Feed receivers 100,000 illegal messages each (1 minute).
	SHEAFGOSSIP_FUZZ=100000 $(BIN)/python -m pytest -q -k "fuzz or illegal" tests/transport/test_fuzz.py tests/metrics/test_collector.py

lint: setup  ## Check style.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## Repair what a machine can repair of the style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pictures: setup  ## Make the pictures of README and of the demo (1 minute).
	rm -rf build/demo build/figures build/moving
	$(BIN)/sheafgossip run examples/selective-sheaf.toml --set evaluation.every=10 --quiet --out build/moving
	$(BIN)/python docs/moving.py build/moving docs/pictures/moving.svg
	$(BIN)/sheafgossip demo --quiet --out build/demo
	$(BIN)/sheafgossip report build/demo --figures build/figures
	mkdir -p docs/pictures/demo
	cp build/figures/learning-accuracy.svg build/figures/graph-5.svg docs/pictures/demo/

gallery: pictures  ## Make all pictures of docs/gallery.md, from runs and from what benchmarks have kept (2 minutes).
	$(BIN)/python benchmarks/gallery.py

# Type checkers do not see that topology/ is sheafgossip.topology, so they are shown a tree of links in which it is.
typecheck: setup  ## Check types.
	rm -rf $(TYPES)
	mkdir -p $(TYPES)/sheafgossip
	ln -s $(addprefix ../../../,$(PACKAGES) $(wildcard api/*.py)) $(TYPES)/sheafgossip/
	cd $(TYPES) && MYPYPATH=. $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml \
		--cache-dir $(CURDIR)/.mypy_cache --namespace-packages --explicit-package-bases -p sheafgossip

bench: bench-scale bench-efficiency bench-parts bench-ring bench-exchange  ## Measure what a run costs, into benchmarks/README.md (20 minutes).

soak: setup  ## See whether anything grows over 5,000 rounds of 64 clients (15 minutes).
	$(BIN)/python benchmarks/soak.py

bench-efficiency: setup  ## Compare CPU time of runs with that of their gradient steps; DATA_ROOT=FOLDER with MNIST (6 minutes).
	$(BIN)/python benchmarks/efficiency.py $(if $(DATA_ROOT),--data-root $(DATA_ROOT))

bench-parts: setup  ## Tell where the CPU time of these runs goes; DATA_ROOT=FOLDER with MNIST (3 minutes).
	$(BIN)/python benchmarks/efficiency.py --parts $(if $(DATA_ROOT),--data-root $(DATA_ROOT))

bench-exchange: setup  ## Compare exchange rounds a second with bare pyzmq (5 minutes).
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/exchange.py

bench-ring: setup  ## Measure CPU time and memory of eight small clients (1 minute).
	$(BIN)/python benchmarks/efficiency.py --ring

bench-own: setup  ## Compare a CNN built in with the same as a module of the user's (3 minutes).
	$(BIN)/python benchmarks/efficiency.py --own

bench-peers: setup  ## The same FedAvg and gossip in Flower and gossipy, which pip installs below build/ (15 minutes).
	$(BIN)/python benchmarks/peers.py

bench-codecs: setup  ## Compare bytes and accuracy of codecs on digits (5 minutes).
	$(BIN)/python benchmarks/digits.py codecs --seeds 3

bench-alike: setup  ## Prototype sheaf beside selective sheaf on nine problems, 5 seeds (20 minutes).
	$(BIN)/python benchmarks/alike.py

bench-collaboration: setup  ## Tune and compare all ways of talking on related tasks (20 minutes).
	$(BIN)/python benchmarks/digits.py tuned

bench-digits: setup  ## Compare accuracy and bytes on digits over 5 seeds (10 minutes).
	$(BIN)/python benchmarks/digits.py

bench-groups: setup  ## FLT and SFMTL-Graph on clients that come in groups (5 minutes).
	$(BIN)/python benchmarks/groups.py

bench-privacy: setup  ## Accuracy, bytes and what a curious neighbour learns, without and with differential privacy; DATA_ROOT=FOLDER with MNIST (1 hour).
	$(BIN)/python benchmarks/privacy.py $(if $(DATA_ROOT),--data-root $(DATA_ROOT))

bench-school: setup  ## Tune and compare all ways of talking on School; DATA_ROOT=FOLDER (25 minutes).
	$(BIN)/python benchmarks/school.py --data-root $(DATA_ROOT)

bench-report: setup  ## Measure how heavy the page of a large run is (2 minutes).
	$(BIN)/python benchmarks/report.py

bench-scale: setup  ## Measure start-up and memory of up to 3,000 clients, which take 19 GB; OTHER=OTHER/.venv/bin/python beside (5 minutes).
	$(BIN)/python benchmarks/scale.py --thousands $(if $(DATA_ROOT),--data-root $(DATA_ROOT)) \
		$(if $(OTHER),--other $(OTHER))

bench-placement: setup  ## Compare what placements send between hosts (1 minute).
	$(BIN)/python benchmarks/placement.py

bench-planner: setup  ## Measure what planning takes; OLD=OTHER/.venv/bin/python beside (5 minutes).
	$(BIN)/python benchmarks/planner.py $(if $(OLD),--old $(OLD))

sizing: setup  ## Estimate what runs of up to a million clients would take (1 minute).
	$(BIN)/python benchmarks/sizing.py

bench-maps: setup  ## Measure restriction maps into benchmarks/results/, and draw them (4 minutes).
	$(BIN)/python benchmarks/maps.py

bench-delays: setup  ## Measure what a message costs on each clock (2 minutes).
	$(BIN)/python benchmarks/delays.py

bench-measuring: setup  ## Compare CPU time with and without measuring (10 minutes).
	$(BIN)/python benchmarks/measuring.py

bench-memory: setup  ## Hold the memory that is reported against what the machine lost (2 minutes).
	$(BIN)/python benchmarks/memory.py

bench-selective: setup  ## Hold selective sheaf against all edges on, and against the groups told (20 minutes).
	$(BIN)/python benchmarks/selective.py groups

bench-selective-others: setup  ## Selective sheaf on skewed labels, and on School with DATA_ROOT=FOLDER (6 minutes).
	$(BIN)/python benchmarks/selective.py others --seeds 3 $(if $(DATA_ROOT),--data-root $(DATA_ROOT))

bench-selective-mnist: setup  ## Tune and compare on rotated MNIST with a CNN, and draw it; DATA_ROOT=FOLDER (3 hours).
	$(BIN)/python benchmarks/selective_mnist.py --data-root $(DATA_ROOT)

bench-seeking: setup  ## Let clients look for better neighbours, 5 seeds (4 minutes).
	$(BIN)/python benchmarks/selective.py seeking

bench-drift: setup  ## Change a group's task half-way, and draw which edges pull (3 minutes).
	$(BIN)/python benchmarks/drift.py

bench-adversaries: setup  ## Attack gossip with robust mixing and selective sheaf with its guard, 3 seeds (30 minutes).
	$(BIN)/python benchmarks/adversaries.py

bench-asynchronous: setup  ## Compare methods that wait for slow clients with those that do not, in virtual time (3 minutes).
	$(BIN)/sheafgossip sweep examples/asynchronous.toml --grid stragglers.kind=none,fixed --seeds 3 --quiet \
		--out runs/bench-asynchronous
	$(BIN)/sheafgossip compare runs/bench-asynchronous --target 0.92 --csv benchmarks/results/asynchronous.csv

bench-board: setup  ## Tune 41 methods alike on six problems, and run each with five seeds (1 hour).
	$(BIN)/sheafgossip board $(addprefix --problem ,rotated labels-2 dirichlet-0.1 owners clusters labels-5) --trials 10 --seeds 5 --jobs 2 --out build/board
	cp build/board/board.md build/board/board.json benchmarks/results/
	cp build/board/board.svg docs/pictures/board.svg

TASK_METHODS = local d-psgd dfedu fedavg fedavg-ft ifca dfca facade pens dac fedper fedrep dfedpgp dispfl sfmtl-graph flt ditto \
	sheaf-fmtl fedsem selective-sheaf prototype-sheaf
bench-tasks: setup  ## Tune 21 methods alike on three more problems: no groups, one client alone, unequal groups (1 hour).
	$(BIN)/sheafgossip board $(addprefix --problem ,angles alone unequal) $(addprefix --method ,$(TASK_METHODS)) \
		--trials 10 --seeds 5 --jobs 2 --out build/tasks
	cp build/tasks/board.md benchmarks/results/tasks.md

bench-nearest: setup  ## Prototype sheaf and its nearest rivals on 14 problems, tuned on three splits, with ten seeds (1 hour).
	$(BIN)/python benchmarks/nearest.py

bench-images: setup  ## The nearest rivals on pictures, tuned alike (MNIST=FOLDER FASHION=FOLDER CIFAR=FILE.npz, or some of them; 2 hours).
	$(BIN)/python benchmarks/images.py $(if $(MNIST),--mnist $(MNIST)) $(if $(FASHION),--fashion $(FASHION)) $(if $(CIFAR),--cifar $(CIFAR))

bench-arms: setup  ## All methods on movements of twenty arms, which no choice has seen; pip fetches them to build/ (30 minutes).
	$(BIN)/pip install --quiet --upgrade --no-deps --target build/seglearn seglearn==1.2.5
	$(BIN)/python benchmarks/arms.py

bench-claims: setup  ## Try what papers say of their methods, on small problems with three seeds (10 minutes).
	$(BIN)/python benchmarks/claims.py

bench-stragglers: setup  ## Measure what staleness buys and costs where clients are slow, and draw it (20 minutes).
	$(BIN)/python benchmarks/stragglers.py

bench-table4: setup  ## Tune and run table 4 of Sheaf-FMTL's paper on MNIST, 5 seeds (DATA_ROOT=FOLDER; 3 hours).
	$(BIN)/python benchmarks/table4.py --data-root $(DATA_ROOT)

bench-tune: setup  ## Hold tuned weights of three methods against a grid ten times as large (5 minutes).
	$(BIN)/python benchmarks/tuning.py

bench-watching: setup  ## Measure what five viewers of watch --web cost a run, and how old what they see is (11 minutes).
	$(BIN)/python benchmarks/watching.py

bench-twin: setup  ## Hold planned seconds against measured ones, over links that the kernel shapes (root; 6 minutes).
	$(BIN)/python benchmarks/twin.py

docs: setup  ## Make the pages that are made from the code.
	$(BIN)/sheafgossip config schema > docs/configuration.md
	$(BIN)/python -m sheafgossip.reference > docs/api.md

site: $(INSTALLED) .venv/.docs  ## Build the site of all pages into build/site, and check it (1 minute).
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	SHEAFGOSSIP_SITE=build/site $(BIN)/python -m pytest tests/test_site.py
	@echo "look at build/site/index.html"

.venv/.docs: pyproject.toml $(INSTALLED)
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

clean:  ## Remove what was built; .venv and runs/ stay.
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find api $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
