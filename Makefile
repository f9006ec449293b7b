# The same variables apply to programs and tests, so Go compiles their common packages once. Rules that compile C set
# CGO_ENABLED=1.
export CGO_ENABLED := 0
export GOFLAGS     := $(strip -trimpath $(filter-out -trimpath,$(shell go env GOFLAGS)))

# make demo and make test need root, Go, and either a kernel with ipvlan or Debian's apt-get. On Debian, these commands
# install the missing packages.
BIN     := /opt/cni/bin
# Packages whose tests need a kernel with ipvlan, the slowest first.
KERNEL  := ./e2e ./unnumbered-ptp ./plugin/chain ./sim/cri ./nl ./plugin/ipvlan ./sim/vpcsim ./sim/kubeproxy ./sim/bench ./nl/bpf ./nl/nltest/... ./tool/repair
# ANYNODE are tests of NODE that need links, NAT and routes, but no ipvlan. They have the same effects on most kernels,
# so test-native runs them without a VM: in a VM, they would take longer. On a kernel with ipvlan, the tests of
# plugin/chain kill the single plugin at all points.
NODE    := ./unnumbered-ptp
ANYNODE := TestKillEverywhere|TestKillRouted|TestKillVethPrefix|TestPodCannotReachAnother|TestPinsLost|TestPrimary|TestOriginal|TestRepair|TestRestore|TestStatus|TestAddLacks
VM      := $(CURDIR)/nl/nltest/vm
# Tests of ipam together with the plugins that come after ipam.
WHOLE   := TestKinds|TestKillOne
# On Debian, a cluster always runs in a VM, even if this machine's kernel has ipvlan: a kubelet also changes settings
# that belong to no namespace.
GUEST    = $(if $(shell command -v apt-get),VM=always) VM_MEM=8G VM_TIMEOUT=10800
CLUSTER := $(CURDIR)/.cache/cluster
# The kernel of test-kubernetes. make test sets it to nothing, which means user-mode Linux: on QEMU, a cluster takes too
# long.
CLUSTER_KERNEL = $(VM_KERNEL)
# Debian packages whose programs are in the image of the cluster's pods, beside agnhost.
AGNHOST := bind9-dnsutils busybox-static curl dash iproute2 libc-bin netcat-openbsd wget
READY    = packages build $(PEERS)/cnitool $(PEERS)/portmap $(PEERS)/firewall $(RUNTIME)/containerd $(RUNTIME)/crio $(RUNTIME)/multus $(RUNTIME)/critest $(JUDGES)/ready
RACE     = $(if $(shell command -v gcc),CGO_ENABLED=1 go test -race,go test)
GOTEST  := go test
# Debian's kernels that stand for the kernels of nodes, as values of VM_KERNEL. Amazon Linux 2 has 5.10. Amazon Linux
# 2023 has 6.1 with EKS up to 1.32, 6.12 with EKS 1.33 to 1.35, and 6.18 with EKS 1.36. trixie-backports has the newest
# kernel.
KERNELS := 5.10 6.1 6.12 6.18 trixie-backports
# Tests that kill commands, and packages that have such tests in a VM.
KILL    := Kill|TestEgressEnds
KILLED  := ./unnumbered-ptp ./plugin/chain ./nl ./plugin/ipvlan ./tool/repair
# test-kernels tests the packages of MATRIX, which are the data plane, on each kernel in QEMU. It leaves out the tests
# of LONG. Some of these kill at the same system calls as other tests, or at calls of EC2. The others are upstream's
# tests, which give up after one second.
MATRIX  := ./e2e ./unnumbered-ptp ./nl ./plugin/ipvlan ./sim/vpcsim ./sim/kubeproxy ./nl/bpf
SKIP    := TestRepo
LONG    := TestKillSeveral|TestKillFurther|TestKillOne|TestJudgePortmap
# The acceptance test on the simulator. test-kernels leaves it out: the plugins do the same on its two nodes as in other
# tests.
TRIAL   := ./acceptance
# Packages whose tests run one thing at a time, or run processes. With the race detector, they would take four times as
# long.
ALONE   := ./ipam ./tool ./packaging ./plugin ./sim/fleet
# Packages in which threads share data, and the tests of ipam and tool in which threads do this. The race detector
# checks these packages and tests. It needs a second compilation of the AWS SDK, so it does not check all packages.
THREADS := ./aws/... ./registry/... ./internal/... ./sim/ec2sim ./sim/machine ./tool/bundle/... ./tool/cli ./tool/connectivity ./tool/doctor
MEET    := TestAtOnce|TestModelAtOnce|TestBurst[A-Z]|TestCollect|TestEndWhileLooking|TestFill|TestFreedWhile|TestGather|TestLinkOfNew|TestStrangerChanges|TestUnassignAndGrow|TestInstallDuring
PEERS   := $(CURDIR)/.cache/peers
JUDGES  := $(CURDIR)/.cache/judges
RUNTIME := $(CURDIR)/.cache/cri
# Releases of containerd before and after a repair. Since this repair, containerd calls DEL for a pod whose ADD it has
# not recorded. Only the rule "judges" uses these releases.
RELEASES := v1.7.30 v1.7.31 v2.1.5 v2.2.1 v2.2.2
# The directory of CRI-O's own network tests and their programs. Only the rule "judges" uses this directory.
BATS    := $(RUNTIME)/bats
SEIZERS := $(CURDIR)/.cache/seizers
TENANTS := $(CURDIR)/.cache/tenants
ROUNDS  := 20
BENCH   := bin/bench -bin $(CURDIR)/bin -peers $(PEERS) -conflist $(CURDIR)/conflist-examples/10-cni-ipvlan-vpc-k8s.conflist
PACKED   = ICOUNT_FILES="$(wildcard $(addprefix $(CURDIR)/,bin/cni-* bin/noop .cache/peers/* conflist-examples/10-* conflist-examples/three-* docs/bench-icount.txt)) /usr/sbin/nft"
GOBUILD  = go build -tags urfave_cli_no_docs -ldflags '-s -w' $(GOBUILD_FLAGS)
# The rule "files" has two variables: prefix is /usr for files of a package, and OUT is the directory of the programs.
NAME    := cni-ipvlan-vpc-k8s
OUT     := bin
prefix  := /usr/local
SYSTEMD := $(if $(filter /usr,$(prefix)),/usr/lib,/etc)/systemd

build:
	$(GOBUILD) -o bin/ ./...

# make test runs two VMs of one CPU at once, and then, without a VM, the tests that use all CPUs. The first run builds
# user-mode Linux, which takes some minutes. In user-mode Linux, the tests take a fifth of the CPU time that they take
# in QEMU. With VM_KERNEL, test-kernel runs the named kernel in QEMU, and the other rules of make test do not change.
test test-kernel test-kubernetes test-cluster cluster: export VM_KIND := uml
test: $(READY) $(if $(shell command -v apt-get),$(SEIZERS)/ready $(TENANTS)/built)
	env -u VM_KERNEL go test -run 'TestRepo' . ./e2e
	$(MAKE) -j2 --no-print-directory test-kubernetes test-kernel test-native CLUSTER_KERNEL= GOTEST='go test -p 1'

# Installs all Debian packages that the tests need, at once. Other rules ask for their packages again, which is quick.
packages:
	$(if $(VM_KERNEL),$(VM)/setup)
	env -u VM_KERNEL $(VM)/setup gcc libc6-dev libsqlite3-dev conmon iproute2 iputils-ping iptables nftables procps systemd dbus udev rpm shellcheck jq git gpg gpg-agent libseccomp-dev pkgconf $(AGNHOST)

# The timeouts of hours end tests that hang. Even the busiest machine needs less time.
test-native:
	env -u MAKEFLAGS -u VM_KERNEL VM_NEED=nat go test -timeout 2h -exec $(VM)/exec -run '^($(ANYNODE))' $(NODE)
	env -u MAKEFLAGS -u VM_KERNEL VM_NEED=nat go test -timeout 2h -exec $(VM)/exec -skip '^TestWhole$$' ./acceptance
	env -u MAKEFLAGS -u VM_KERNEL go test -timeout 2h -skip '$(WHOLE)' -parallel 4 $(ALONE)
	env -u MAKEFLAGS -u VM_KERNEL $(RACE) -timeout 2h -run '$(MEET)' ./ipam/... ./tool
	env -u MAKEFLAGS -u VM_KERNEL $(RACE) -timeout 2h $(THREADS)
	env -u MAKEFLAGS -u VM_KERNEL go test -timeout 2h $$(go list ./... | grep -vxF "$$(go list . $(ALONE) $(THREADS) $(KERNEL) ./acceptance ./sim/cluster)")

# Two tests run at once in a VM of one CPU, because one of them may wait for a clock.
test-kernel: export VM_TIMEOUT := 7200
test-kernel:
	$(GOTEST) -timeout 2h -parallel 2 -exec $(VM)/exec -skip '$(SKIP)' $(filter-out $(NODE),$(KERNEL))
	$(GOTEST) -timeout 2h -exec $(VM)/exec -skip '^($(ANYNODE))|$(SKIP)' $(NODE)
	$(GOTEST) -timeout 2h -exec $(VM)/exec -run '$(WHOLE)' -skip '$(SKIP)' ./ipam
	$(if $(TRIAL),$(GOTEST) -timeout 2h -exec $(VM)/exec -run '^TestWhole$$' $(TRIAL))

# Runs the tests of MATRIX, without LONG, on each of the KERNELS. Each run writes its row of docs/kernels.md, even if
# tests fail.
test-kernels: $(READY)
	status=0; for k in $(KERNELS); do v=$$(VM_KERNEL=$$k $(VM)/exec uname -r) && \
	$(MAKE) -i -s --no-print-directory test-kernel VM_KERNEL=$$k KERNEL='$(MATRIX)' TRIAL= SKIP='$(SKIP)|$(LONG)' GOTEST='go test -json' | tee .cache/kernel-$$k.json | \
	bin/kernels -table docs/kernels.md -kernel $$k -version $$v || status=1; done; exit $$status

# Kills commands at all points at which they can be killed. make test tries every fourth point.
test-kill: export VM_KIND := uml
test-kill: $(READY)
	go test -timeout 4h -run '$(KILL)' -parallel 4 ./ipam ./tool -args -step 1
	go test -timeout 4h -exec $(VM)/exec -run '$(WHOLE)' ./ipam -args -step 1
	go test -timeout 4h -exec $(VM)/exec -run '$(KILL)' $(KILLED) -args -step 1

# Makes faults on the node of make sim, and writes to docs/faults.md what our programs print about them. make test makes
# some of these faults.
test-faults: export VM_KIND := uml
test-faults: build $(PEERS)/cnitool
	VM_RW=$(CURDIR) go test -count 1 -timeout 1h -exec $(VM)/exec -run '^(TestFaults|TestHealthy|TestConnectivity(Faults|Kill))$$' ./e2e -args -faults

# Runs programs and tests of other projects that judge our programs, and writes docs/judges.md. make test runs those
# that take little time.
judges: export VM_KIND := uml
judges: $(READY) $(RELEASES:%=$(RUNTIME)/releases/%/containerd) $(BATS)/ready
	(VM_TIMEOUT=7200 go test -json -count 1 -timeout 2h -exec $(VM)/exec -run '^(TestJudge|TestMeta|TestMultus$$)' ./e2e; \
	VM_TIMEOUT=7200 go test -json -count 1 -timeout 2h -exec $(VM)/exec -run '^TestJudge' ./sim/cri -args -releases $(RUNTIME)/releases -bats $(BATS)) | bin/judges -table docs/judges.md

# Tests with Kubernetes. test-kubernetes checks the manifests with the code of the API server, and runs the short
# scenarios. test-cluster runs all scenarios, in both modes of kube-proxy.
test-kubernetes: $(CLUSTER)/e2e.test
	$(call KUBE,test) -vet=off ./manifest
	VM_KERNEL=$(CLUSTER_KERNEL) $(GUEST) go test -timeout 2h -short -exec $(VM)/exec ./sim/cluster

# The last release before HEAD, or if there is no release, the commit 200 commits before HEAD.
BEFORE = $(or $(shell git describe --tags --abbrev=0 HEAD^ 2>/dev/null),$(shell git rev-list -1 --skip=200 HEAD))
before:
	rm -rf .cache/before && mkdir -p .cache/before/src && git archive $(BEFORE) | tar -x -C .cache/before/src
	go build -C .cache/before/src -ldflags '-s -w' -o ../bin/ ./...
	rm -r .cache/before/src && echo $(BEFORE) >.cache/before/commit

test-cluster: build before $(PEERS)/portmap $(PEERS)/ptp $(RUNTIME)/containerd $(CLUSTER)/e2e.test $(CLUSTER)/calico-felix
	$(VM)/setup iptables nftables ipset procps $(AGNHOST)
	packaging/package -i -b bin -o $(CLUSTER) $$(go env GOARCH)
	$(MAKE) -j2 --no-print-directory --keep-going $(RUNS:%=test-cluster-%); status=$$?; \
	cd $(CLUSTER) && cat $(RUNS:%=%.txt) >$(CURDIR)/docs/test-cluster.txt; cat $(CURDIR)/docs/test-cluster.txt; exit $$status

# The first two runs have all scenarios, each in one mode of kube-proxy. The other two run Kubernetes' tests of the
# network on nodes with another configuration.
RUNS    := nftables iptables three families
ONLY    := -run 'TestCluster/(^Kubernetes|^as_before$$)'
test-cluster-nftables: FLAGS := -proxy nftables
test-cluster-iptables: FLAGS := -proxy iptables
test-cluster-three: FLAGS := -proxy iptables -shape 'three plugins'
test-cluster-families: FLAGS := -shape 'both families'
test-cluster-three test-cluster-families: SCENARIOS = $(ONLY)
test-cluster-%:
	rm -rf $(CLUSTER)/$*.txt $(CLUSTER)/logs/$* && mkdir -p $(CLUSTER)/logs/$*
	VM_RW=$(CLUSTER) $(GUEST) go test -v -timeout 3h -count=1 $(SCENARIOS) -exec $(VM)/exec ./sim/cluster -args $(FLAGS) -table $(CLUSTER)/$*.txt -logs $(CLUSTER)/logs/$*

cluster: build $(PEERS)/portmap $(RUNTIME)/containerd $(CLUSTER)/ready
	@$(VM)/setup iptables nftables procps $(AGNHOST) </dev/null
	@VM_STDIN=1 $(GUEST) $(VM)/exec bin/play

lint:
	test -z "$$(gofmt -l .)" && go vet ./... && go tool -modfile=$(TOOLS)/go.mod staticcheck ./...
	$(VM)/setup clang-16 libbpf-dev linux-libc-dev
	cd nl/bpf && go vet generate.go && go run generate.go -check

# Tests on the real EC2, for a person with an AWS account: see docs/acceptance.md. The instances are always of amd64.
EC2     := $(CURDIR)/.cache/ec2
test-ec2:
	$(MAKE) -s programs GOARCH=amd64 OUT=$(EC2)/bin
	GOARCH=amd64 $(GOBUILD) -o $(EC2)/bin/cni-acceptance-ends ./acceptance/ends/cni-acceptance-ends
	rm -rf $(EC2)/root && $(MAKE) -s files OUT=$(EC2)/bin prefix=/usr DESTDIR=$(EC2)/root
	go build -o $(EC2)/acceptance ./acceptance
	$(EC2)/acceptance -root $(EC2)/root -ends $(EC2)/bin/cni-acceptance-ends $(ARGS)

# DATAPATH is the data path of the pods; empty: as configured. With veth, the demo needs no ipvlan, so it needs no VM if
# the kernel has all other features.
demo: build
	@$(if $(filter veth,$(DATAPATH)),VM_NEED=nat) $(VM)/exec bin/demo $(DATAPATH:%=-datapath %)

sim: build $(PEERS)/cnitool
	@$(if $(filter veth,$(DATAPATH)),VM_NEED=nat) $(VM)/setup iproute2 iputils-ping nftables </dev/null
	@VM_STDIN=1 $(if $(filter veth,$(DATAPATH)),VM_NEED=nat) $(VM)/exec bin/shell $(DATAPATH:%=-datapath %)

# Plugins with which benchmarks and tests compare ours. Their module has nothing else, so no other program raises the
# versions of their dependencies.
PEER    := sim/peers
PLUGINS := ptp host-local portmap tuning firewall
$(PLUGINS:%=$(PEERS)/%) &: $(PEER)/go.sum
	go build -C $(<D) -ldflags '-s -w' -o $(PEERS)/ tool && touch $(PLUGINS:%=$(PEERS)/%)

# Tests of other projects, each package compiled to a program, and the files that these tests need.
JUDGE   := sim/judges
UPSTREAM := github.com/containernetworking/plugins
$(JUDGES)/ready: $(JUDGE)/go.mod $(JUDGE)/istio/go.sum
	mkdir -p $(JUDGES)
	go build -C $(<D) -ldflags '-s -w' -o $(JUDGES)/ tool
	go test -C $(<D) -vet=off -c -o $(JUDGES)/ $(addprefix $(UPSTREAM)/,integration plugins/meta/portmap)
	go mod download -C $(<D)/istio istio.io/istio
	install -m644 $$(go list -C $(<D)/istio -m -f '{{.Dir}}' istio.io/istio)/cni/pkg/plugin/testdata/basic.txt.golden $(JUDGES)/istio.rules
	rm -rf $(JUDGES)/testdata && cp -r --no-preserve=mode $$(go list -C $(<D) -m -f '{{.Dir}}' $(UPSTREAM))/integration/testdata $(JUDGES)/
	touch $@

# Programs of other projects that build, check and try our programs.
TOOLS   := internal/tools
$(PEERS)/cnitool: $(TOOLS)/go.sum
	go build -C $(<D) -ldflags '-s -w' -o $@ github.com/containernetworking/cni/cnitool && touch $@

# containerd, runc (which also contains C), and the program cri, which calls a runtime as kubelet does. They are not in
# PEERS, because the benchmarks copy all of PEERS into the VM.
CRI     := sim/cri/programs
$(RUNTIME)/containerd: $(CRI)/go.mod $(wildcard $(CRI)/*/*.go)
	$(VM)/setup gcc libc6-dev libseccomp-dev pkgconf
	CGO_ENABLED=1 go build -C $(<D) -tags no_btrfs,no_devmapper,no_zfs,seccomp -ldflags '-s -w' -o $(RUNTIME)/ tool ./...

$(RUNTIME)/releases/%/containerd: $(CRI)/releases/%/go.sum
	$(VM)/setup gcc libc6-dev libseccomp-dev pkgconf
	CGO_ENABLED=1 go build -C $(<D) -tags no_aufs,no_btrfs,no_devmapper,no_zfs,seccomp -ldflags '-s -w' -o $(@D)/ tool

# CRI-O, and its program pinns, which makes a pod's namespaces. Both are from CRI-O's module.
CRIO    := containers_image_openpgp,containers_image_ostree_stub,containers_image_rekor_stub,exclude_graphdriver_btrfs,exclude_graphdriver_zfs,libsqlite3
$(RUNTIME)/crio: $(CRI)/crio/go.sum
	$(VM)/setup gcc libc6-dev libsqlite3-dev conmon
	go mod download -C $(<D) github.com/cri-o/cri-o
	mkdir -p $(RUNTIME) && gcc -Os -o $(RUNTIME)/pinns $$(go list -C $(<D) -m -f '{{.Dir}}' github.com/cri-o/cri-o)/pinns/src/*.c
	CGO_ENABLED=1 go build -C $(<D) -tags $(CRIO) -ldflags '-s -w' -o $(RUNTIME)/ tool

# CRI-O's own tests, the programs that they call, and bats, which runs them. Debian's bats is too old.
$(BATS)/ready: $(CRI)/bats/package-lock.json $(CRI)/crio/go.sum $(CRI)/critest/go.sum
	$(VM)/setup gcc libc6-dev libsqlite3-dev $(if $(shell command -v npm),,npm)
	rm -rf $(@D) && mkdir -p $(@D) && cp $(addprefix $(<D)/,package.json package-lock.json) $(@D)/
	cd $(@D) && npm ci --ignore-scripts --no-audit --no-fund --silent
	CGO_ENABLED=1 go build -C $(CRI)/crio -tags $(CRIO) -ldflags '-s -w' -o $(@D)/ github.com/cri-o/cri-o/test/copyimg
	go build -C $(CRI)/critest -ldflags '-s -w' -o $(@D)/ sigs.k8s.io/cri-tools/cmd/crictl
	cp -r --no-preserve=mode $$(go list -C $(CRI)/crio -m -f '{{.Dir}}' github.com/cri-o/cri-o)/test $(@D)/
	touch $@

# Multus, which calls the plugins for several networks of a pod.
$(RUNTIME)/multus: $(CRI)/multus/go.sum
	go build -C $(<D) -ldflags '-s -w' -o $@ gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus && touch $@

# The tests of the Container Runtime Interface.
$(RUNTIME)/critest: $(CRI)/critest/go.sum
	go test -C $(<D) -vet=off -c -ldflags '-s -w' -o $@ sigs.k8s.io/cri-tools/cmd/critest && touch $@

# Debian's cloud-init with the Python packages that it needs, and Debian's firewalls, NetworkManager and Docker. The
# rules unpack these packages and do not install them, because installed packages would configure this machine. The
# rules install only the libraries.
$(SEIZERS)/ready: UNPACK := cloud-init $(addprefix python3-,attr certifi chardet charset-normalizer configobj idna jinja2 jsonpatch \
	json-pointer jsonschema markupsafe pkg-resources pyrsistent requests six urllib3 yaml)
$(TENANTS)/ready: UNPACK := firewalld python3-firewall ufw network-manager docker.io containerd runc wireguard-tools chrony unattended-upgrades lsb-release
$(TENANTS)/ready: LIBRARIES := $(addprefix python3-,dbus gi nftables cap-ng apt distro-info) $(addprefix lib,edit2 nm0 bluetooth3 curl3-gnutls mm-glib0 ndp0 \
	devmapper1.02.1 newt0.52 teamdctl0)
$(SEIZERS)/ready $(TENANTS)/ready:
	$(VM)/setup python3 $(LIBRARIES) && rm -rf $(@D) && mkdir -p $(@D)/debs
	cd $(@D)/debs && get='apt-get -qq -o APT::Sandbox::User=root' && \
	{ $$get download $(UNPACK) || { $$get update && $$get download $(UNPACK); }; }
	for deb in $(@D)/debs/*.deb; do dpkg -x $$deb $(@D) || exit; done
	cd $(@D) && for dir in lib; do cp -a $$dir usr && rm -r $$dir || exit; done # as on a system
	cd $(@D)/usr && rm -rf ../debs bin/containerd-shim* bin/ctr bin/dnet bin/docker sbin/ovrouter && touch $@ # no container starts

# Tailscale with a control server of its tests, and WireGuard in user space: the kernel of the tests may have no
# wireguard. Tailscale has only the features that change the node's network.
TENANT   := sim/tenants
FEATURES := cli,iptables,ipnbus,osrouter,sdnotify,tailnetlock,unixsocketidentity
$(TENANTS)/built: $(TENANTS)/ready $(TENANT)/go.sum $(wildcard $(TENANT)/*/*.go)
	go build -C $(TENANT) -ldflags '-s -w' -o $(@D)/usr/sbin/ \
		-tags "$$(go run -C $(TENANT) tailscale.com/cmd/featuretags --min --add=$(FEATURES))" tool ./...
	ln -sf ../sbin/tailscaled $(@D)/usr/bin/tailscale
	cd $$(go list -C $(TENANT) -m -f '{{.Dir}}' tailscale.com)/cmd/tailscaled && \
	install -m644 tailscaled.service $(@D)/usr/lib/systemd/system/ && install -m644 tailscaled.defaults $(@D)/etc/default/tailscaled
	touch $@

# Kubernetes, etcd, CoreDNS, an engine for NetworkPolicy with its manifest, and the network tests of Kubernetes.
# Kubernetes gets its version from the linker. Its compilation takes minutes. It has a low priority, because tests with
# limits of seconds run meanwhile. Without -vet=off, go vet would also check all packages of other projects.
KUBES   := sim/cluster/programs
ENGINE  := sigs.k8s.io/kube-network-policies
KUBE     = nice -n 19 go $(1) -C $(KUBES) -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$(go list -C $(KUBES) -m -f '{{.Version}}' k8s.io/kubernetes)"
$(CLUSTER)/e2e.test: $(CLUSTER)/ready $(wildcard $(KUBES)/e2e/*.go)
	$(call KUBE,test) -vet=off -c -o $@ ./e2e
$(CLUSTER)/ready: $(wildcard $(addprefix $(KUBES)/,go.mod */go.mod))
	$(call KUBE,build) -o $(CLUSTER)/ tool
	install -m644 -t $(CLUSTER) $$(go list -C $(KUBES) -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost/porter/localhost.*
	go build -C $(KUBES)/etcd -ldflags '-s -w' -o $(CLUSTER)/etcd go.etcd.io/etcd/server/v3
	go build -C $(KUBES)/coredns -ldflags '-s -w' -o $(CLUSTER)/ tool
	go build -C $(KUBES)/netpol -ldflags '-s -w' -o $(CLUSTER)/netpol $(ENGINE)/cmd/kube-network-policies/standard
	install -m644 $$(go list -C $(KUBES)/netpol -m -f '{{.Dir}}' $(ENGINE))/install.yaml $(CLUSTER)/netpol.yaml
	touch $@

# Felix, Calico's engine for NetworkPolicy, and the custom resources that it reads. Only test-cluster uses them.
$(CLUSTER)/calico-felix: $(KUBES)/calico/go.mod
	go build -C $(KUBES)/calico -ldflags '-s -w' -o $(CLUSTER)/ tool
	install -m644 $$(go list -C $(KUBES)/calico -m -f '{{.Dir}}' github.com/projectcalico/calico)/manifests/crds.yaml $(CLUSTER)/calico.yaml
	touch $@

bench: build $(PEERS)/ptp
	$(VM)/setup iptables nftables
	@$(VM)/exec $(BENCH) -rounds $(ROUNDS)

bench-icount: build $(PEERS)/ptp
	VM=always $(VM)/setup nftables
	@$(PACKED) $(VM)/icount $(BENCH) -icount >.cache/bench-icount.txt
	@echo >>.cache/bench-icount.txt
	@$(PACKED) $(VM)/icount $(BENCH) -icount -pods 200 -rounds 20 >>.cache/bench-icount.txt
	@echo >>.cache/bench-icount.txt
	@$(PACKED) VM_MEM=6G VM_TIMEOUT=5000 $(VM)/icount $(BENCH) -icount -pods 1500 -prefixes -rounds 8 >>.cache/bench-icount.txt
	@echo >>.cache/bench-icount.txt
	@$(PACKED) VM_MEM=6G VM_TIMEOUT=5000 $(VM)/icount $(BENCH) -icount -pods 1500 -alone -rounds 8 >>.cache/bench-icount.txt
	@echo >>.cache/bench-icount.txt
	@$(PACKED) VM_MEM=6G VM_TIMEOUT=5000 $(VM)/icount $(BENCH) -icount -pods 1500 -alone -cards -rounds 8 >>.cache/bench-icount.txt
	@echo >>.cache/bench-icount.txt
	@$(PACKED) VM_POSSIBLE=192 $(VM)/icount $(BENCH) -icount -rounds 20 >>.cache/bench-icount.txt && mv .cache/bench-icount.txt docs/ && cat docs/bench-icount.txt
	$(MAKE) -s plot

# VM_KERNEL selects another kernel; trixie-backports has the newest (see setup).
TRAFFIC  = bench-traffic$(if $(VM_KERNEL),-$(VM_KERNEL)).txt
bench-traffic: build
	VM=always $(VM)/setup
	@mkdir -p .cache && $(PACKED) $(VM)/icount $(BENCH) -traffic -icount -rounds 5 >.cache/$(TRAFFIC) && mv .cache/$(TRAFFIC) docs/ && cat docs/$(TRAFFIC)
	$(MAKE) -s plot
	$(MAKE) -s bench-egress

# The cost of packets to a host outside: by the node, by our tunnels, and by tunnels like those of other plugins.
EGRESS   = bench-egress$(if $(VM_KERNEL),-$(VM_KERNEL)).txt
bench-egress: build
	VM=always $(VM)/setup nftables
	@mkdir -p .cache && ICOUNT_FILES="$(wildcard $(CURDIR)/bin/cni-*)" $(VM)/icount $(BENCH) -egress -icount -rounds 5 >.cache/$(EGRESS) && mv .cache/$(EGRESS) docs/ && cat docs/$(EGRESS)

# Simulates a large cluster against EC2's rate limits, on one core, with 8 GB. FLEET sets other nodes, ways or seeds:
# see sim/fleet. The script exec gives the simulation a /run of its own. Otherwise other tests of this machine that look
# into namespaces would see the simulation's namespaces.
FLEET   := -nodes 2000
fleet:
	VM_NEED=nat $(VM)/setup iptables nftables
	rm -rf .cache/fleet
	VM_NEED=nat go test -count=1 -timeout 12h -exec $(VM)/exec -run TestWhole -v ./sim/fleet -args $(FLEET) -results $(CURDIR)/.cache/fleet -write $(CURDIR)/docs/fleet.md
	$(MAKE) -s plot

# The cost of STATUS, compared with a program that does nothing. bench-check also measures STATUS.
bench-status: build
	VM=always $(VM)/setup nftables
	@mkdir -p .cache && $(PACKED) $(VM)/icount $(BENCH) -icount -status -rounds 20 >.cache/bench-status.txt && mv .cache/bench-status.txt docs/ && cat docs/bench-status.txt

# The memory that ADDs of our plugins and of upstream's plugins take.
bench-memory: build $(PEERS)/ptp
	VM=always VM_KIND=uml $(VM)/setup
	@mkdir -p .cache && VM=always VM_KIND=uml $(VM)/exec $(BENCH) -memory -rounds 5 >.cache/bench-memory.txt && mv .cache/bench-memory.txt docs/ && cat docs/bench-memory.txt

# Measures, by a virtual clock, how long an ADD waits for EC2 if no address is free. Beside this wait, the results show
# the time of the EC2 calls that must follow each other.
cold:
	VM_NEED=nat $(VM)/setup iptables nftables
	VM_NEED=nat go test -count=1 -exec $(VM)/exec -run '^TestCold$$' ./sim/fleet -args -cold $(CURDIR)/docs
	$(MAKE) -s plot

plot:
	go run ./sim/bench/plot docs/bench-icount.txt docs/bench-traffic.txt >docs/speed.svg.new && mv docs/speed.svg.new docs/speed.svg
	go run ./sim/bench/plot docs/fleet.md >docs/fleet.svg.new && mv docs/fleet.svg.new docs/fleet.svg
	go run ./sim/bench/plot docs/cold.txt >docs/cold.svg.new && mv docs/cold.svg.new docs/cold.svg

# Makes the picture of docs/support-bundle.md: a real browser shows the page of a simulated node. Debian's packages are
# chromium and pngquant. No test checks the picture: look at it, and at the dark picture in .cache/page.
PAGE = $(CURDIR)/.cache/page
SHOT = chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1120,2760
picture: build
	@mkdir -p $(PAGE)
	SUPPORT_BUNDLE_PAGE=$(PAGE) SUPPORT_BUNDLE_BIN=$(CURDIR)/bin go test -count=1 -run TestSupportBundlePage ./tool
	$(SHOT) --screenshot=$(PAGE)/light.png file://$(PAGE)/page.html
	$(SHOT) --screenshot=$(PAGE)/dark.png --blink-settings=preferredColorScheme=0 file://$(PAGE)/page.html
	pngquant --force --strip --speed 1 --output docs/support-bundle.png 64 $(PAGE)/light.png

bench-check: build $(PEERS)/ptp
	VM=always $(VM)/setup nftables
	@$(PACKED) $(VM)/icount $(BENCH) -icount -baseline $(CURDIR)/docs/bench-icount.txt

programs:
	$(GOBUILD) -o $(OUT)/ $$(go list ./... | grep '/$(NAME)/.*/$(NAME)[a-z-]*$$')

install: GOBUILD_FLAGS += -buildvcs=auto
install: build
	$(MAKE) -s files

# Installs each program by a rename: a process that starts the program meanwhile gets the old one or the new one.
# Programs that execute other programs come last. The manual is built with the same flags as the programs, so Go
# compiles the SDK once for all, in any directory.
files:
	put() { install -D -m755 $$1 $$2.new && mv -f $$2.new $$2; }; set -e; \
	for p in -grow -ipam -ipvlan -unnumbered-ptp -egress ''; do put $(OUT)/$(NAME)$$p $(DESTDIR)$(BIN)/$(NAME)$$p; done; \
	put $(OUT)/$(NAME)-tool $(DESTDIR)$(prefix)/bin/$(NAME)-tool; put systemd/$(NAME)-links $(DESTDIR)$(prefix)/bin/$(NAME)-links
	ln -sf $(NAME)-tool $(DESTDIR)$(prefix)/bin/cni-tool
	for f in $$(cd systemd && find */ -type f); do install -D -m644 systemd/$$f $(DESTDIR)$(SYSTEMD)/$$f || exit; done
	install -D -m644 -t $(DESTDIR)/etc/cloud/cloud.cfg.d packaging/cloud.cfg.d/*
	install -D -m644 -t $(DESTDIR)$(prefix)/share/doc/$(NAME) LICENSE README.md conflist-examples/* $(addprefix packaging/,cloud-init.yaml alerts.yaml dashboard.json)
	go run ./packaging/manual $(DESTDIR)$(prefix)/share

# Removes the files that the rule "files" installs, and the directories that only the rule "files" makes.
uninstall:
	@set -e; like=$$(mktemp -d); trap 'rm -rf '$$like EXIT; $(MAKE) -s files DESTDIR=$$like; \
	(cd $$like && find . ! -type d) | while read -r f; do rm -f "$(DESTDIR)/$$f"; done; \
	(cd $$like && find . -depth -type d \( -path '*cni*' -o -name '*.d' -o -name cloud \)) | while read -r d; do rmdir --ignore-fail-on-non-empty "$(DESTDIR)/$$d"; done

package:
	packaging/package amd64 arm64

# A container image for both architectures, as an OCI layout: dist/image.
image:
	packaging/package -i amd64 arm64

# release makes, in dist, all files of the release whose tag HEAD has. With KEY=..., gpg signs their checksums.
# changelog prints a draft for CHANGELOG.md.
release:
	packaging/release amd64 arm64
changelog:
	@packaging/release -c

# Builds and packs both architectures and the image twice, and checks that the bytes are the same. It also installs the
# packages and the image into a root directory, and removes them again.
package-check:
	CNI_TEST_PACKAGE=all go test -count=1 -run 'TestPackage|TestImage$$|TestRelease' -v ./packaging

clean:
	rm -rf bin dist .cache

.PHONY: build before test packages judges test-ec2 test-native test-kernel test-kernels test-kill test-faults test-kubernetes test-cluster cluster lint bench bench-icount bench-traffic bench-egress bench-check bench-memory bench-status cold plot picture fleet demo sim install files uninstall programs package image release changelog package-check clean
