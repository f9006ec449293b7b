// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// TestStrangeAnswers: EC2 answers with an address that cannot be on the ENI. No pod gets this address, now or later.
func TestStrangeAnswers(t *testing.T) {
	for _, test := range []struct{ name, action, from, to string }{
		{"an address of another subnet", "AssignPrivateIpAddresses", "100.77.", "100.78."},
		{"the router's address", "AssignPrivateIpAddresses", ">100.77.0.5<", ">100.77.0.1<"},
		{"a new ENI in another subnet", "CreateNetworkInterface", "100.77.", "100.78."},
		{"a new ENI with the address of another", "CreateNetworkInterface", ">100.77.0.4<", ">10.177.0.4<"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			if test.action != "CreateNetworkInterface" {
				w.mustAcquire(0)
			}
			w.lying(test.action, test.from, test.to)
			_, err := w.acquire(1)
			if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeTryAgain ||
				!strings.Contains(err.Error(), " cannot be on ") {
				t.Errorf("got %v", err)
			}
			s := w.State()
			for a := range s.Free.Keys() {
				if test.action == "CreateNetworkInterface" || strings.HasPrefix(a.String(), "100.78.") {
					t.Errorf("%s is free", a)
				}
			}
			w.consistent()
		})
	}
}

// lying replaces a text in EC2's answers to the action. The argument from is this text, and to is its replacement.
func (w *world) lying(action, from, to string) {
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		w.EC2.ServeHTTP(answer, r)
		text := answer.Body.String()
		if r.FormValue("Action") == action {
			text = strings.ReplaceAll(text, from, to)
		}
		rw.WriteHeader(answer.Code)
		io.WriteString(rw, text)
	})
}
