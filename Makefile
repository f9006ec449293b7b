# make demo and make test need root, Go, and either a kernel with ipvlan or Debian's apt-get.
BIN     := /opt/cni/bin
KERNEL  := ./nl/... ./plugin/ipvlan/... ./unnumbered-ptp/... ./aws/vpcsim/...
VM      := $(CURDIR)/nl/nltest/vm
RACE    := $(if $(shell command -v gcc),-race)
GOBUILD := CGO_ENABLED=0 go build -trimpath -tags urfave_cli_no_docs -ldflags '-s -w'

build:
	$(GOBUILD) -o bin/ ./...

test: build
	go test $(RACE) -run 'TestRepo' .
	go test $(RACE) $$(go list ./... | grep -vxF "$$(go list $(KERNEL) .)")
	go test -exec $(VM)/exec -skip 'TestRepo' $(KERNEL) .

lint:
	test -z "$$(gofmt -l .)" && go vet ./... && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

demo: build
	@$(VM)/exec bin/demo

install: build
	install -D -m755 -t $(DESTDIR)$(BIN) bin/cni-ipvlan-vpc-k8s-ipam bin/cni-ipvlan-vpc-k8s-ipvlan bin/cni-ipvlan-vpc-k8s-unnumbered-ptp
	install -D -m755 -t $(DESTDIR)/usr/local/bin bin/cni-ipvlan-vpc-k8s-tool && ln -sf cni-ipvlan-vpc-k8s-tool $(DESTDIR)/usr/local/bin/cni-tool
	install -D -m644 -t $(DESTDIR)/etc/systemd/system systemd/*

clean:
	rm -rf bin .cache

.PHONY: build test lint bench bench-icount demo install clean
