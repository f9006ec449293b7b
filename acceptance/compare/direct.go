// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package compare

import (
	"net/http"
	"net/http/httptest"
)

// A Direct reaches a handler, such as the simulator, in this process without a socket.
type Direct struct{ http.Handler }

// Do makes a request.
func (d Direct) Do(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, q)
	a := w.Result()
	a.Request = q
	return a, nil
}
