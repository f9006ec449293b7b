// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// An apiServer stands for the API server. If a PATCH of a node's status has a token, an apiServer answers as the API
// server does. The tests of package kube try other credentials.
type apiServer struct {
	*httptest.Server
	node string

	mu       sync.Mutex
	capacity map[string]any
	requests string
	status   int // HTTP status of the answers; 0: success
}

// startAPIServer starts an API server that knows one node, and writes a kubeconfig to the file kubelet.conf.
func startAPIServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: apiserver NODE")
	}
	s := &apiServer{node: args[0], capacity: map[string]any{"cpu": "2", "cni-ipvlan-vpc-k8s/addresses-old": "7"}}
	s.Server = httptest.NewTLSServer(s)
	ts.Defer(s.Close)
	apiServers.Store(ts.Getenv("WORK"), s)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	ts.Check(os.WriteFile(ts.MkAbs("ca.crt"), ca, 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("kubelet.conf"), fmt.Appendf(nil, `current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority: ca.crt}}]
users: [{name: u, user: {token: token}}]
`, s.URL), 0o600))
}

var apiServers sync.Map // the key is the directory of the script

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	s.requests += fmt.Sprintf("%s %s %s\n", r.Method, r.URL.Path, body)
	var patch struct {
		Status struct{ Capacity map[string]any }
	}
	status, message := s.status, "no such node"
	switch {
	case status != 0:
		message = "not now"
	case r.Header.Get("Authorization") != "Bearer token":
		status = http.StatusUnauthorized
	case r.Method != http.MethodPatch || json.Unmarshal(body, &patch) != nil:
		status = http.StatusBadRequest
	case r.URL.Path != "/api/v1/nodes/"+s.node+"/status":
		status = http.StatusNotFound
	}
	if status != 0 {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "message": message})
		return
	}
	maps.Copy(s.capacity, patch.Status.Capacity)
	maps.DeleteFunc(s.capacity, func(_ string, n any) bool { return n == nil })
	_ = json.NewEncoder(w).Encode(map[string]any{"status": map[string]any{"capacity": s.capacity}})
}

// patches prints the requests that the API server has got since the previous command patches. If the command has an
// HTTP status as its argument, the server answers all later requests with this status, until the next command patches.
func patches(ts *testscript.TestScript, _ bool, args []string) {
	v, _ := apiServers.Load(ts.Getenv("WORK"))
	s := v.(*apiServer)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status = 0; len(args) > 0 {
		_, err := fmt.Sscan(args[0], &s.status)
		ts.Check(err)
	}
	_, err := fmt.Fprint(ts.Stdout(), s.requests)
	ts.Check(err)
	s.requests = ""
}
