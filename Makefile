# make demo and make test need root, Go, and either a kernel with ipvlan or Debian's apt-get.
BIN     := /opt/cni/bin
KERNEL  := ./nl/... ./plugin/ipvlan/... ./unnumbered-ptp/... ./aws/vpcsim/...
VM      := $(CURDIR)/nl/nltest/vm
RACE    := $(if $(shell command -v gcc),-race)
PEERS   := $(CURDIR)/.cache/peers
ROUNDS  := 20
BENCH   := bin/bench -bin $(CURDIR)/bin -peers $(PEERS) -conflist $(CURDIR)/conflist-examples/10-cni-ipvlan-vpc-k8s.conflist
PACKED   = ICOUNT_FILES="$(wildcard $(addprefix $(CURDIR)/,bin/cni-* bin/noop .cache/peers/* conflist-examples/10-* docs/bench-icount.txt)) /usr/sbin/nft"
GOBUILD := CGO_ENABLED=0 go build -trimpath -tags urfave_cli_no_docs -ldflags '-s -w'

build:
	$(GOBUILD) -o bin/ ./...

test: build
	$(VM)/setup iproute2 nftables
	go test $(RACE) -run 'TestRepo' .
	go test $(RACE) -skip TestKillEverywhere $$(go list ./... | grep -vxF "$$(go list $(KERNEL) .)")
	go test -run TestKillEverywhere -parallel 4 ./ipam
	go test -exec $(VM)/exec -skip 'TestRepo' $(KERNEL) .

lint:
	test -z "$$(gofmt -l .)" && go vet ./... && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

demo: build
	@$(VM)/exec bin/demo

$(PEERS)/ptp:
	GOBIN=$(PEERS) CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' $(addprefix github.com/containernetworking/plugins/plugins/,main/ptp@v1.9.1 ipam/host-local@v1.9.1)

bench: build $(PEERS)/ptp
	$(VM)/setup iptables nftables
	@$(VM)/exec $(BENCH) -rounds $(ROUNDS)

bench-icount: build $(PEERS)/ptp
	VM=always $(VM)/setup nftables
	@$(PACKED) $(VM)/icount $(BENCH) -icount >.cache/bench-icount.txt && mv .cache/bench-icount.txt docs/ && cat docs/bench-icount.txt

bench-traffic: build
	VM=always $(VM)/setup
	@mkdir -p .cache && $(PACKED) $(VM)/icount $(BENCH) -traffic -icount -rounds 5 >.cache/bench-traffic.txt && mv .cache/bench-traffic.txt docs/ && cat docs/bench-traffic.txt

bench-check: build $(PEERS)/ptp
	VM=always $(VM)/setup nftables
	@$(PACKED) $(VM)/icount $(BENCH) -icount -baseline $(CURDIR)/docs/bench-icount.txt

install: build
	install -D -m755 -t $(DESTDIR)$(BIN) bin/cni-ipvlan-vpc-k8s-ipam bin/cni-ipvlan-vpc-k8s-ipvlan bin/cni-ipvlan-vpc-k8s-unnumbered-ptp
	install -D -m755 -t $(DESTDIR)/usr/local/bin bin/cni-ipvlan-vpc-k8s-tool && ln -sf cni-ipvlan-vpc-k8s-tool $(DESTDIR)/usr/local/bin/cni-tool
	install -D -m644 -t $(DESTDIR)/etc/systemd/system systemd/*

clean:
	rm -rf bin .cache

.PHONY: build test lint bench bench-icount bench-traffic bench-check demo install clean
