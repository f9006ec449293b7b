// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asksLimits is an environment variable. If it is set, this test program calls EC2, and prints the error. This needs a
// separate process, because net/http reads the variables of proxies only once.
const asksLimits = "ENVIRONMENT_TEST_ASKS_LIMITS"

// TestProxy: the Client asks EC2 through HTTPS_PROXY, and checks EC2's certificate with AWS_CA_BUNDLE. With NO_PROXY,
// it asks EC2 directly.
func TestProxy(t *testing.T) {
	server := secure(t)
	plain := httptest.NewServer(server.Config.Handler)
	t.Cleanup(plain.Close)
	proxy, connected := connectProxy(t, server)
	ask := func(env ...string) string {
		return asked(t, append(env, "AWS_REGION=us-east-1", "AWS_CA_BUNDLE="+bundle(t, server))...)
	}
	const host = "example.com" // the certificate of httptest has this name
	if got := ask("AWS_ENDPOINT_URL_EC2=https://"+host, "HTTPS_PROXY="+proxy); got != "<nil>" || len(connected) != 1 ||
		<-connected != "CONNECT "+host+":443" {
		t.Errorf("got %s; want it by the proxy", got)
	}
	if got := ask("AWS_ENDPOINT_URL_EC2=https://"+host, "HTTPS_PROXY=http://127.0.0.1:1"); !strings.Contains(got,
		"proxyconnect") {
		t.Errorf("with a proxy that is down: got %s", got)
	}
	// net/http uses no proxy for 127.0.0.1. The address 0.0.0.0 reaches the same server.
	anywhere := strings.Replace(plain.URL, "127.0.0.1", "0.0.0.0", 1)
	if got := ask("AWS_ENDPOINT_URL_EC2="+anywhere, "HTTP_PROXY=http://127.0.0.1:1"); !strings.Contains(got,
		"proxyconnect") {
		t.Errorf("without NO_PROXY: got %s", got)
	}
	if got := ask("AWS_ENDPOINT_URL_EC2="+anywhere, "HTTP_PROXY=http://127.0.0.1:1",
		"NO_PROXY=0.0.0.0"); got != "<nil>" {
		t.Errorf("with NO_PROXY: got %s", got)
	}
}

// asked returns the error of a process that calls EC2. The process has only these environment variables.
func asked(t *testing.T, env ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(env, asksLimits+"=1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// connectProxy starts a proxy that connects all clients to one server. The channel gets the hosts that the clients have
// named.
func connectProxy(t *testing.T, server *httptest.Server) (string, <-chan string) {
	t.Helper()
	connected := make(chan string, 9)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connected <- r.Method + " " + r.Host
		to, err := net.Dial("tcp", server.Listener.Addr().String())
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
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL, connected
}

// An authority is a certificate authority. The field file is a value for AWS_CA_BUNDLE.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := authority{key: key, file: filepath.Join(t.TempDir(), "ca.pem"), cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of the company"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, key.Public(), key)
	if err == nil {
		err = os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// certify issues a certificate for the host that a client names (SNI), as a proxy that intercepts TLS does.
func (a authority) certify(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{hello.ServerName}, NotBefore: a.cert.NotBefore,
		NotAfter: a.cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, a.key.Public(), a.key)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.key}, err
}

// TestEndpointByProxy starts a process for each environment. All processes ask EC2 through a proxy that intercepts TLS
// and answers as EC2. The proxy records for which host each process asks. No packet leaves the loopback link.
func TestEndpointByProxy(t *testing.T) {
	sim, _, _ := world(t, "m5.large")
	ca := newAuthority(t)
	server := httptest.NewUnstartedServer(sim)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // discards messages about refused certificates
	server.TLS = &tls.Config{GetCertificate: ca.certify}
	server.StartTLS()
	t.Cleanup(server.Close)
	proxy, connected := connectProxy(t, server)
	for _, tt := range []struct {
		name, region string // region is the region of the instance
		env          []string
		want         string // the host that the process must ask
	}{
		{"a region", "eu-west-1", nil, "ec2.eu-west-1.amazonaws.com"},
		{"FIPS", "us-east-1", []string{"AWS_USE_FIPS_ENDPOINT=true"}, "ec2-fips.us-east-1.amazonaws.com"},
		{"dual stack", "eu-west-1", []string{"AWS_USE_DUALSTACK_ENDPOINT=true"}, "ec2.eu-west-1.api.aws"},
		{"China", "cn-north-1", nil, "ec2.cn-north-1.amazonaws.com.cn"},
		{"China, dual stack", "cn-north-1", []string{"AWS_USE_DUALSTACK_ENDPOINT=true"},
			"ec2.cn-north-1.api.amazonwebservices.com.cn"},
		{"GovCloud", "us-gov-west-1", nil, "ec2.us-gov-west-1.amazonaws.com"},
		{"GovCloud, FIPS", "us-gov-west-1", []string{"AWS_USE_FIPS_ENDPOINT=true"}, "ec2.us-gov-west-1.amazonaws.com"},
		{"a VPC endpoint", "eu-west-1",
			[]string{"AWS_ENDPOINT_URL_EC2=https://vpce-1.ec2.eu-west-1.vpce.amazonaws.com"},
			"vpce-1.ec2.eu-west-1.vpce.amazonaws.com"},
		{"all services", "eu-west-1", []string{"AWS_ENDPOINT_URL=https://all.example.com"}, "all.example.com"},
		{"ignored", "eu-west-1", []string{"AWS_ENDPOINT_URL=https://all.example.com",
			"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true"}, "ec2.eu-west-1.amazonaws.com"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			document := `{"availabilityZone": "` + tt.region +
				`a", "instanceId": "i-1", "instanceType": "m5.large", "region": "` + tt.region + `"}`
			metadata := httptest.NewServer(tree{"/latest/dynamic/instance-identity/document": document})
			defer metadata.Close()
			env := append(tt.env, "HTTPS_PROXY="+proxy, "AWS_EC2_METADATA_SERVICE_ENDPOINT="+metadata.URL)
			if got := asked(t, append(env, "AWS_CA_BUNDLE="+ca.file)...); got != "<nil>" {
				t.Errorf("got %s", got)
			}
			if got, want := <-connected, "CONNECT "+tt.want+":443"; got != want {
				t.Errorf("it asks the proxy for %s, want %s", got, want)
			}
		})
	}
	if got := asked(t, "AWS_REGION=us-east-1", "HTTPS_PROXY="+proxy); !strings.Contains(got,
		"certificate signed by unknown authority") {
		t.Errorf("without AWS_CA_BUNDLE: got %s", got)
	}
}
