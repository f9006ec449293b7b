// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"encoding/json"
	"net"
	"net/http"
)

// serveAPI is an API server in which nothing ever changes. It returns its URL.
func serveAPI(lists map[string]object) (url string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, ok := lists[r.URL.Path]
		q := r.URL.Query()
		switch {
		case !ok: // events, and whatever else nobody needs
			http.NotFound(w, r)
		case q.Get("sendInitialEvents") != "": // a client that is refused this lists first and watches then
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
