// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An apiServer answers a PATCH of a node's status as the API server does. It authenticates the client by a certificate
// or a token, and allows a node to change only its own status.
type apiServer struct {
	*httptest.Server
	dir      string // directory with the files of a node: ca.crt and kubelet.pem
	capacity map[string]any
	requests []string
}

const nodeToken = "token-of-node1"

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{dir: t.TempDir(), capacity: map[string]any{"cpu": "2"}}
	s.Server = httptest.NewUnstartedServer(s)
	roots := x509.NewCertPool()
	cert := s.writeCertificate(t, "system:node:node1")
	roots.AddCert(cert)
	s.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots}
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	s.write(t, "ca.crt", string(ca), 0o600)
	return s
}

// writeCertificate writes a self-signed certificate and its key into one file, as the kubelet does.
func (s *apiServer) writeCertificate(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		Subject:   pkix.Name{CommonName: name, Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	s.write(t, "kubelet.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))+
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})), 0o600)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return cert
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *apiServer) write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(s.dir, name)
	must(t, os.WriteFile(file, []byte(text), mode))
	return file
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.requests = append(s.requests, fmt.Sprintf("%s %s %s %s", r.Method, r.URL, r.Header.Get("Content-Type"), body))
	byCert := len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].Subject.CommonName == "system:node:node1"
	var patch struct {
		Status struct{ Capacity, Allocatable map[string]any }
	}
	switch err := json.Unmarshal(body, &patch); {
	case !byCert && r.Header.Get("Authorization") != "Bearer "+nodeToken:
		refuse(w, http.StatusUnauthorized, "Unauthorized")
	case r.Method != http.MethodPatch || r.URL.Path != "/api/v1/nodes/node1/status":
		refuse(w, http.StatusForbidden, `nodes "x" is forbidden: node "node1" is not allowed to modify node "x"`)
	case err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json":
		refuse(w, http.StatusUnsupportedMediaType, "no merge patch")
	default:
		for name, n := range patch.Status.Capacity {
			if s.capacity[name] = n; n == nil {
				delete(s.capacity, name)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Node", "status": map[string]any{"capacity": s.capacity}})
	}
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "message": message})
}

// kubeconfig writes a kubeconfig with these credentials of a user, and returns its path.
func (s *apiServer) kubeconfig(t *testing.T, user string) string {
	t.Helper()
	return s.write(t, "kubelet.conf", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: c
  cluster: {server: %q, certificate-authority: ca.crt}
contexts:
- name: system:node
  context: {cluster: c, user: kubelet}
current-context: system:node
preferences: {}
users:
- name: kubelet
  user: %s
`, s.URL, user), 0o600)
}

// TestPatchNode patches a node with each kind of credentials that a kubelet has. Each patch must need only one request.
func TestPatchNode(t *testing.T) {
	for name, test := range map[string]struct {
		user string
		node string // the node that the credentials name
	}{
		"a file, as by kubeadm and kOps": {"{client-certificate: kubelet.pem, client-key: kubelet.pem}", "node1"},
		"data in the kubeconfig":         {"DATA", "node1"},
		"a token":                        {"{token: " + nodeToken + "}", ""},
		"the file of a token":            {"{tokenFile: token, token: an-old-one}", ""},
		"a program, as on EKS": {`
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: ./get-token
      args: [` + nodeToken + `]
      env: [{name: KIND, value: ExecCredential}]
      provideClusterInfo: true
      interactiveMode: IfAvailable`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			s.write(t, "token", nodeToken+"\n", 0o600)
			s.write(t, "get-token", `#!/bin/sh
case $KUBERNETES_EXEC_INFO in *'"server":"`+s.URL+`"'*) ;; *) exit 1 ;; esac
echo '{"kind": "'$KIND'", "apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": "'$1'"}}'`, 0o700)
			if test.user == "DATA" {
				text, err := os.ReadFile(filepath.Join(s.dir, "kubelet.pem"))
				must(t, err)
				b := base64.StdEncoding.EncodeToString(text)
				test.user = fmt.Sprintf("{client-certificate-data: %s, client-key-data: %s}", b, b)
			}
			c, err := Load(t.Context(), s.kubeconfig(t, test.user))
			must(t, err)
			if c.Node() != test.node {
				t.Errorf("the credentials name the node %q, want %q", c.Node(), test.node)
			}
			n := 27
			has, err := c.PatchNode(t.Context(), "node1", Resources{"cni-ipvlan-vpc-k8s/addresses": &n, "gone": nil})
			must(t, err)
			const want = `PATCH /api/v1/nodes/node1/status?fieldManager=cni-ipvlan-vpc-k8s application/merge-patch+json ` +
				`{"status":{"allocatable":{"cni-ipvlan-vpc-k8s/addresses":"27","gone":null},` +
				`"capacity":{"cni-ipvlan-vpc-k8s/addresses":"27","gone":null}}}`
			if got := strings.Join(s.requests, "\n"); got != want {
				t.Errorf("requests:\n%s\nwant\n%s", got, want)
			}
			if has["cni-ipvlan-vpc-k8s/addresses"] != "27" || has["cpu"] != "2" || len(has) != 2 {
				t.Errorf("the node has %v", has)
			}
		})
	}
}

// TestRotated replaces the kubelet's certificate by one that the API server does not trust. A process that starts
// afterwards must use the new certificate.
func TestRotated(t *testing.T) {
	s := newAPIServer(t)
	file := s.kubeconfig(t, "{client-certificate: kubelet.pem, client-key: kubelet.pem}")
	s.writeCertificate(t, "system:node:node9")
	c, err := Load(t.Context(), file)
	must(t, err)
	if c.Node() != "node9" {
		t.Errorf("the certificate is of %q", c.Node())
	}
	if _, err := c.PatchNode(t.Context(), "node9", nil); err == nil {
		t.Error("the API server accepts a certificate that others have signed")
	}
}

// TestRefused checks the errors for answers that are no success.
func TestRefused(t *testing.T) {
	s := newAPIServer(t)
	for user, want := range map[string]int{"{token: other}": http.StatusUnauthorized,
		"{client-certificate: kubelet.pem, client-key: kubelet.pem}": http.StatusForbidden} {
		c, err := Load(t.Context(), s.kubeconfig(t, user))
		must(t, err)
		_, err = c.PatchNode(t.Context(), "node2", nil)
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Status != want || r.Message == "" {
			t.Errorf("%s: %v, want status %d", user, err, want)
		}
	}
	other := newAPIServer(t)
	s.write(t, "ca.crt", string(must1(os.ReadFile(filepath.Join(other.dir, "kubelet.pem")))), 0o600)
	c, err := Load(t.Context(), s.kubeconfig(t, "{token: "+nodeToken+"}"))
	must(t, err)
	if _, err = c.PatchNode(t.Context(), "node1", nil); !Untrusted(err) {
		t.Errorf("a server that another authority has signed: %v", err)
	}
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestRedirected has an API server that redirects the client to another server. The client must not follow, because the
// other server would get the credentials.
func TestRedirected(t *testing.T) {
	s, asked := newAPIServer(t), 0
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(elsewhere.Close)
	s.Config.Handler = http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect)
	c, err := Load(t.Context(), s.kubeconfig(t, "{token: "+nodeToken+"}"))
	must(t, err)
	if _, err := c.PatchNode(t.Context(), "node1", nil); err == nil || asked > 0 {
		t.Errorf("%v, and %d requests elsewhere", err, asked)
	}
}

// TestBadKubeconfigs checks the errors for kubeconfigs that no kubelet has. Each error must say what is wrong.
func TestBadKubeconfigs(t *testing.T) {
	s := newAPIServer(t)
	for user, want := range map[string]string{
		"{}":                                    "but the user has none of these",
		"{username: a, password: b}":            "Kubernetes no longer accepts a password",
		"{token: a, as: root}":                  "no impersonation",
		"{client-certificate: none.pem}":        "none.pem: no such file",
		"{client-certificate: ca.crt}":          "client certificate: tls: failed to find any PEM data in key",
		"{exec: {command: /bin/false}}":         "exec: /bin/false: exit status 1",
		"{exec: {command: no-such}}":            "executable file not found",
		"{exec: {command: /bin/true}}":          "its output is no ExecCredential",
		"{exec: {interactiveMode: Always}}":     "no person can answer a prompt here",
		"{exec: {command: echo, args: ['{}']}}": "want an ExecCredential",
	} {
		_, err := Load(t.Context(), s.kubeconfig(t, user))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", user, err, want)
		}
	}
	for text, want := range map[string]string{
		"current-context: x": `the file has no context "x"`,
		"[":                  "the file is no kubeconfig",
		"contexts: [{name: x, context: {cluster: a, user: b}}]\ncurrent-context: x": `the file has no cluster "a"`,
		"contexts: [{name: '', context: {}}]\nclusters: [{name: '', cluster: {server: 'http://1'}}]\n" +
			"users: [{name: ''}]": "want a URL that begins with https://",
	} {
		_, err := Load(t.Context(), s.write(t, "bad.conf", text, 0o600))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "bad.conf") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestExecEnds checks that a credential program that takes too long is killed, even if it has started another program.
func TestExecEnds(t *testing.T) {
	s := newAPIServer(t)
	for _, program := range []string{"{command: sleep, args: ['60']}", "{command: sh, args: [-c, 'sleep 60; true']}"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		if _, err := Load(ctx, s.kubeconfig(t, "{exec: "+program+"}")); err == nil {
			t.Errorf("%s does not end, and has credentials", program)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: the end takes %v", program, took)
		}
		cancel()
	}
}

// TestExecLeaves: the credential program prints credentials and exits. It leaves a child process that keeps the pipes
// open.
func TestExecLeaves(t *testing.T) {
	s := newAPIServer(t)
	s.write(t, "get-token", `#!/bin/sh
sleep 60 &
echo '{"kind": "ExecCredential", "apiVersion": "v1", "status": {"token": "`+nodeToken+`"}}'`, 0o700)
	c, err := Load(t.Context(), s.kubeconfig(t, "{exec: {command: ./get-token, apiVersion: v1}}"))
	must(t, err)
	_, err = c.PatchNode(t.Context(), "node1", nil)
	must(t, err)
}
