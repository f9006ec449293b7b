// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"encoding/json"
	"net"
	"net/http"
)

// serveAPI starts an API server whose objects never change, and returns its URL.
func serveAPI(lists map[string]object) (url string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, ok := lists[r.URL.Path]
		q := r.URL.Query()
		switch {
		case !ok: // for example events, which kube-proxy does not need
			http.NotFound(w, r)
		case q.Get("sendInitialEvents") != "": // not supported: after the error, clients ask for a list and a watch
			http.Error(w, "list, please", http.StatusBadRequest)
		case q.Has("watch"):
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(found)
		}
	}))
	return "http://" + l.Addr().String(), nil
}
