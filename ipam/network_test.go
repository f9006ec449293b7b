// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestProxy: a plugin asks EC2 through a proxy that intercepts TLS, as in a company's network. Only AWS_CA_BUNDLE has
// the CA of the proxy. The plugin must pass this environment to GrowProgram. An ADD that finds a free address does not
// read these variables, so it succeeds even if they are wrong.
func TestProxy(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	n.conf["ipBatchSize"] = 4
	p := newInterceptor(t, n.EC2)
	direct := slices.DeleteFunc(slices.Clone(n.env), func(v string) bool {
		return strings.HasPrefix(v, "AWS_ENDPOINT_URL_EC2=")
	})
	direct = append(direct, "HTTPS_PROXY="+n.serve("proxy", p), "AWS_ENDPOINT_URL_EC2=https://"+interceptedHost)

	n.env = direct
	const unknown = "certificate signed by unknown authority"
	if e := n.fails(n.cni("ADD", "first", map[string]any{"addTimeout": 20})); !strings.Contains(e.Msg,
		unknown) || e.Code != plugin.CodeTryAgain ||
		!strings.Contains(e.Details, "set AWS_CA_BUNDLE to a file") ||
		!strings.Contains(e.Details, "the endpoint is https://"+interceptedHost+
			", because of AWS_ENDPOINT_URL_EC2") {
		t.Errorf("without the CA: code %d, %s (%s)", e.Code, e.Msg, e.Details)
	}
	n.env = append(slices.Clone(direct), "AWS_CA_BUNDLE=/nowhere.pem")
	if e := n.fails(n.cni("ADD", "first", nil)); !strings.Contains(e.Msg,
		`AWS_CA_BUNDLE="/nowhere.pem": no such file or directory: want a file with CA certificates (PEM)`) ||
		!strings.Contains(e.Details, "the unit of the container runtime") {
		t.Errorf("without the file: code %d, %s (%s)", e.Code, e.Msg, e.Details)
	}
	n.env = append(slices.Clone(direct), "AWS_CA_BUNDLE="+p.bundle)
	n.add("first")
	if hosts := p.hosts(); len(hosts) == 0 || slices.ContainsFunc(hosts,
		func(h string) bool { return h != "CONNECT "+interceptedHost+":443" }) {
		t.Errorf("the proxy was asked for %q", hosts)
	}
	n.env = append(slices.Clone(direct), "AWS_CA_BUNDLE=/nowhere.pem", "AWS_USE_FIPS_ENDPOINT=perhaps",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT=nowhere", "HTTPS_PROXY=http://127.0.0.1:1")
	n.add("second")
	if hosts := p.hosts(); len(hosts) > 0 {
		t.Errorf("for an address that is free, the proxy was asked for %q", hosts)
	}
}

// interceptedHost is a name in the certificate of httptest.
const interceptedHost = "example.com"

// An interceptor is a proxy that answers as EC2, with a certificate of its own.
type interceptor struct {
	ec2    *httptest.Server
	bundle string // the file with its CA

	mu    sync.Mutex
	asked []string
}

func newInterceptor(t *testing.T, ec2 http.Handler) *interceptor {
	t.Helper()
	p := &interceptor{ec2: httptest.NewUnstartedServer(ec2), bundle: filepath.Join(t.TempDir(), "ca.pem")}
	p.ec2.Config.ErrorLog = log.New(io.Discard, "", 0) // no messages about refused certificates
	p.ec2.StartTLS()
	t.Cleanup(p.ec2.Close)
	must(t, os.WriteFile(p.bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: p.ec2.Certificate().Raw}), 0o600))
	return p
}

// hosts returns the hosts for which the proxy was asked since the last time.
func (p *interceptor) hosts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked
	p.asked = nil
	return asked
}

func (p *interceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.mu.Unlock()
	to, err := net.Dial("tcp", p.ec2.Listener.Addr().String())
	if err != nil {
		return
	}
	from, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { io.Copy(to, from); to.Close() }()
	io.Copy(from, to)
	from.Close()
}
