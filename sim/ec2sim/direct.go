// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"io"
	"net/http"
	"net/http/httptest"
)

// A Direct is an HTTP client that calls a handler, such as a [Sim], in this process. It needs no socket. If the handler
// aborts the connection, the request fails with io.EOF.
type Direct struct{ http.Handler }

// Do calls the handler with a request, and returns the answer.
func (d Direct) Do(r *http.Request) (answer *http.Response, err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			answer, err = nil, io.EOF
		default:
			panic(p)
		}
	}()
	arrived := r.WithContext(r.Context())
	arrived.Host = r.URL.Host
	if r.Body == nil {
		arrived.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, arrived)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	answer = w.Result()
	answer.Request = r
	return answer, nil
}
