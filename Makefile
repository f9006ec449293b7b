# make demo and make test need root, Go, and either a kernel with ipvlan or Debian's apt-get.
BIN     := /opt/cni/bin
KERNEL  := ./nl/... ./plugin/ipvlan/... ./plugin/chain/... ./unnumbered-ptp/... ./aws/vpcsim/...
VM      := $(CURDIR)/nl/nltest/vm
RACE    := $(if $(shell command -v gcc),-race)
PEERS   := $(CURDIR)/.cache/peers
RUNTIME := $(CURDIR)/.cache/cri
ROUNDS  := 20
BENCH   := bin/bench -bin $(CURDIR)/bin -peers $(PEERS) -conflist $(CURDIR)/conflist-examples/10-cni-ipvlan-vpc-k8s.conflist
PACKED   = ICOUNT_FILES="$(wildcard $(addprefix $(CURDIR)/,bin/cni-* bin/noop .cache/peers/* conflist-examples/10-* conflist-examples/three-* docs/bench-icount.txt)) /usr/sbin/nft"
GOBUILD  = CGO_ENABLED=0 go build -trimpath -tags urfave_cli_no_docs -ldflags '-s -w' $(GOBUILD_FLAGS)
# Where files goes takes prefix=/usr for what a package owns, OUT for where the programs are, and TOOL for one that runs here.
NAME    := cni-ipvlan-vpc-k8s
OUT     := bin
TOOL     = $(OUT)/$(NAME)-tool
prefix  := /usr/local
SYSTEMD := $(if $(filter /usr,$(prefix)),/usr/lib,/etc)/systemd

build:
	$(GOBUILD) -o bin/ ./...

test: build $(PEERS)/cnitool $(PEERS)/portmap $(PEERS)/firewall $(RUNTIME)/containerd $(RUNTIME)/crio
	$(VM)/setup iproute2 iputils-ping iptables nftables procps systemd dbus udev rpm shellcheck
	go test $(RACE) -run 'TestRepo' .
	go test $(RACE) -skip TestKillEverywhere $$(go list ./... | grep -vxF "$$(go list $(KERNEL) .)")
	go test -run TestKillEverywhere -parallel 4 ./ipam
	go test -timeout 20m -exec $(VM)/exec -skip 'TestRepo' $(KERNEL) .

lint:
	test -z "$$(gofmt -l .)" && go vet ./... && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

demo: build
	@$(VM)/exec bin/demo

sim: build $(PEERS)/cnitool
	@$(VM)/setup iproute2 iputils-ping
	@VM_TTY=1 $(VM)/exec bin/sim

$(PEERS)/cnitool:
	GOBIN=$(PEERS) CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' github.com/containernetworking/cni/cnitool@v1.3.1

$(PEERS)/ptp:
	GOBIN=$(PEERS) CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' $(addprefix github.com/containernetworking/plugins/plugins/,main/ptp@v1.9.1 ipam/host-local@v1.9.1)

$(PEERS)/portmap:
	GOBIN=$(PEERS) CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' github.com/containernetworking/plugins/plugins/meta/portmap@v1.9.1

$(PEERS)/firewall:
	GOBIN=$(PEERS) CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' $(addprefix github.com/containernetworking/plugins/plugins/meta/,tuning@v1.9.1 firewall@v1.9.1)

# containerd, runc, which is C too, and what asks them as kubelet does. No peers: the benchmarks carry those along.
CRI     := aws/vpcsim/cri/programs
$(RUNTIME)/containerd: $(CRI)/go.sum $(wildcard $(CRI)/*/*.go)
	$(VM)/setup gcc libc6-dev
	CGO_ENABLED=1 go build -C $(<D) -tags no_btrfs,no_devmapper,no_zfs -ldflags '-s -w' -o $(RUNTIME)/ tool ./...

# CRI-O, and pinns, its program that makes a pod's namespaces, from its module, too.
CRIO    := containers_image_openpgp,containers_image_ostree_stub,containers_image_rekor_stub,exclude_graphdriver_btrfs,exclude_graphdriver_zfs,libsqlite3
$(RUNTIME)/crio: $(CRI)/crio/go.sum
	$(VM)/setup gcc libc6-dev libsqlite3-dev conmon
	mkdir -p $(RUNTIME) && gcc -Os -o $(RUNTIME)/pinns $$(go list -C $(<D) -m -f '{{.Dir}}' github.com/cri-o/cri-o)/pinns/src/*.c
	CGO_ENABLED=1 go build -C $(<D) -tags $(CRIO) -ldflags '-s -w' -o $(RUNTIME)/ tool

bench: build $(PEERS)/ptp
	$(VM)/setup iptables nftables
	@$(VM)/exec $(BENCH) -rounds $(ROUNDS)

bench-icount: build $(PEERS)/ptp
	VM=always $(VM)/setup nftables
	@$(PACKED) $(VM)/icount $(BENCH) -icount >.cache/bench-icount.txt
	@echo >>.cache/bench-icount.txt
	@$(PACKED) $(VM)/icount $(BENCH) -icount -pods 200 -rounds 20 >>.cache/bench-icount.txt && mv .cache/bench-icount.txt docs/ && cat docs/bench-icount.txt

# With VM_KERNEL=trixie-backports on a newer kernel (see setup).
TRAFFIC  = bench-traffic$(if $(VM_KERNEL),-$(VM_KERNEL)).txt
bench-traffic: build
	VM=always $(VM)/setup
	@mkdir -p .cache && $(PACKED) $(VM)/icount $(BENCH) -traffic -icount -rounds 5 >.cache/$(TRAFFIC) && mv .cache/$(TRAFFIC) docs/ && cat docs/$(TRAFFIC)

bench-check: build $(PEERS)/ptp
	VM=always $(VM)/setup nftables
	@$(PACKED) $(VM)/icount $(BENCH) -icount -baseline $(CURDIR)/docs/bench-icount.txt

programs:
	$(GOBUILD) -o $(OUT)/ $$(go list ./... | grep '/$(NAME)/.*/$(NAME)[a-z-]*$$')

install: build
	$(MAKE) -s files

# Each program by a rename: whoever starts it meanwhile has the old one or the new one. The plugin that executes another comes last.
files:
	put() { install -D -m755 $$1 $$2.new && mv -f $$2.new $$2; }; set -e; \
	for p in -ipam -ipvlan -unnumbered-ptp ''; do put $(OUT)/$(NAME)$$p $(DESTDIR)$(BIN)/$(NAME)$$p; done; \
	put $(OUT)/$(NAME)-tool $(DESTDIR)$(prefix)/bin/$(NAME)-tool; put systemd/$(NAME)-links $(DESTDIR)$(prefix)/bin/$(NAME)-links
	ln -sf $(NAME)-tool $(DESTDIR)$(prefix)/bin/cni-tool
	for f in $$(cd systemd && find */ -type f); do install -D -m644 systemd/$$f $(DESTDIR)$(SYSTEMD)/$$f || exit; done
	install -D -m644 -t $(DESTDIR)$(prefix)/share/doc/$(NAME) LICENSE README.md conflist-examples/* $(addprefix packaging/,cloud-init.yaml alerts.yaml dashboard.json)
	say() { f=$(DESTDIR)$(prefix)/share/$$1; shift; mkdir -p $${f%/*} && $(TOOL) "$$@" >$$f.new && chmod 644 $$f.new && mv $$f.new $$f; }; set -e; \
	say man/man8/$(NAME)-tool.8 man; say bash-completion/completions/$(NAME)-tool completion bash; \
	say zsh/site-functions/_$(NAME)-tool completion zsh; say fish/vendor_completions.d/$(NAME)-tool.fish completion fish
	ln -sf $(NAME)-tool.8 $(DESTDIR)$(prefix)/share/man/man8/cni-tool.8
	ln -sf $(NAME)-tool $(DESTDIR)$(prefix)/share/bash-completion/completions/cni-tool

# What files puts there, and the folders that only it makes.
uninstall:
	@set -e; like=$$(mktemp -d); trap 'rm -rf '$$like EXIT; $(MAKE) -s files DESTDIR=$$like; \
	(cd $$like && find . ! -type d) | while read -r f; do rm -f "$(DESTDIR)/$$f"; done; \
	(cd $$like && find . -depth -type d \( -path '*cni*' -o -name '*.d' \)) | while read -r d; do rmdir --ignore-fail-on-non-empty "$(DESTDIR)/$$d"; done

package:
	packaging/package amd64 arm64

# Both architectures, built and packed twice: the same bytes; installed into a root folder, and removed.
package-check:
	CNI_TEST_PACKAGE=all go test -count=1 -run TestPackage -v ./packaging

clean:
	rm -rf bin dist .cache

.PHONY: build test lint bench bench-icount bench-traffic bench-check demo sim install files uninstall programs package package-check clean
