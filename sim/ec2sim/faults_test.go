// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestFaults: EC2 refuses as many calls as the test has passed to Fail, with the right status, and does not carry out
// these calls.
func TestFaults(t *testing.T) {
	sim, _ := start(t, world)
	const call = "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1"
	sim.Fail("AssignPrivateIpAddresses", "RequestLimitExceeded", 2)
	var got []string
	for range 3 {
		code, _ := refused(t, sim, call)
		got = append(got, code)
	}
	for _, code := range []string{"InternalError", "Unavailable", "InsufficientAddressCapacity", "AuthFailure",
		"InsufficientFreeAddressesInSubnet"} {
		sim.Fail("AssignPrivateIpAddresses", code, -1)
		answer, _ := refused(t, sim, call)
		got = append(got, answer)
	}
	sim.Fail("AssignPrivateIpAddresses", "", 0)
	code, _ := refused(t, sim, call)
	got = append(got, code)
	want := []string{
		"503 RequestLimitExceeded", "503 RequestLimitExceeded", "200",
		"500 InternalError", "503 Unavailable", "500 InsufficientAddressCapacity", "401 AuthFailure",
		"400 InsufficientFreeAddressesInSubnet",
		"200",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := len(sim.ENIs()[0].Addrs); got != 3 {
		t.Errorf("%d addresses, want 3", got)
	}
}

// TestCalls: Calls returns every call, with its parameters and its error code.
func TestCalls(t *testing.T) {
	sim, _ := start(t, world)
	must(t, sim, create+" ClientToken=t1 Description=x")
	post(t, sim, "DeleteNetworkInterface NetworkInterfaceId=eni-9")
	var got []string
	for _, c := range sim.Calls() {
		got = append(got, c.String())
	}
	want := []string{
		"CreateNetworkInterface Description=x SubnetId=subnet-b",
		long("DeleteNetworkInterface NetworkInterfaceId=eni-9: InvalidNetworkInterfaceID.NotFound"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if token := sim.Calls()[0].Params["ClientToken"]; token != "t1" {
		t.Errorf("token %q", token)
	}
	sim.ResetCalls()
	if left := sim.Calls(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestFaultOfNoAction(t *testing.T) {
	sim, _ := start(t, world)
	defer func() {
		if recover() == nil {
			t.Error("an unknown action was taken")
		}
	}()
	sim.Fail("AssignPrivateIPAddresses", "RequestLimitExceeded", 1)
}

// TestDelay: a delayed answer comes late, but EC2 carries out the call at once, even if the caller gives up.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, _ := start(t, world)
		sim.Delay("CreateNetworkInterface", 5*time.Second)
		begin := time.Now()
		must(t, sim, create)
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		body := url.Values{"Action": {"CreateNetworkInterface"}, "SubnetId": {"subnet-b"}}.Encode()
		r := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		sim.ServeHTTP(w, r)
		if took := time.Since(begin); took != 6*time.Second || w.Body.Len() != 0 {
			t.Errorf("given up after %v with %s", took, w.Body)
		}
		if enis := sim.ENIs(); len(enis) != 3 {
			t.Errorf("%d ENIs, want 3", len(enis))
		}
	})
}

// TestLose: EC2 carries out two calls, and closes their connections without an answer. EC2 answers a call that it
// refuses, and each call after the second lost answer.
func TestLose(t *testing.T) {
	sim, _ := start(t, world)
	server := httptest.NewServer(sim)
	defer server.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	sim.Lose("CreateNetworkInterface", 2)
	var got []string
	for _, subnet := range []string{"subnet-b", "subnet-x", "subnet-b", "subnet-b"} {
		answer, err := http.PostForm(server.URL, url.Values{"Action": {"CreateNetworkInterface"}, "SubnetId": {subnet}})
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			got = append(got, "lost")
			continue
		}
		answer.Body.Close()
		got = append(got, strconv.Itoa(answer.StatusCode))
	}
	if diff := cmp.Diff([]string{"lost", "400", "lost", "200"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if enis := sim.ENIs(); len(enis) != 4 {
		t.Errorf("%d ENIs, want 4", len(enis))
	}
	calls := sim.Calls()
	if got := calls[0].String() + ", " +
		calls[3].String(); got != "CreateNetworkInterface SubnetId=subnet-b: answer lost, CreateNetworkInterface "+
		"SubnetId=subnet-b" {
		t.Error(got)
	}
}

// TestTokenAfterALostAnswer: a repeated call with the same token finds the ENI of the call whose answer was lost.
func TestTokenAfterALostAnswer(t *testing.T) {
	sim, _ := start(t, world)
	sim.Lose("CreateNetworkInterface", -1)
	func() {
		defer func() {
			if r := recover(); r != http.ErrAbortHandler {
				t.Errorf("panic: %v", r)
			}
		}()
		post(t, sim, create+" ClientToken=t1")
	}()
	sim.Lose("CreateNetworkInterface", 0)
	if got := must(t, sim, create+" ClientToken=t1").one(t, "networkInterfaceId"); got != long("eni-2") {
		t.Error(got)
	}
}

// TestTagsNeedTheirOwnPermission: a creation with tags also needs the permission for CreateTags.
func TestTagsNeedTheirOwnPermission(t *testing.T) {
	c := world
	c.Denied = []string{"CreateTags"}
	sim, _ := start(t, c)
	const tags = " TagSpecification.1.ResourceType=network-interface TagSpecification.1.Tag.1.Key=a"
	for _, call := range []string{create + tags, create + tags + " DryRun=true"} {
		if got, _ := refused(t, sim, call); got != "403 UnauthorizedOperation" {
			t.Errorf("%s: %s", call, got)
		}
	}
	must(t, sim, create)
}

// TestQueryString: a GET with all parameters in the URL works, too.
func TestQueryString(t *testing.T) {
	sim, _ := start(t, world)
	w := httptest.NewRecorder()
	sim.ServeHTTP(w, httptest.NewRequest("GET", "/?Action=DescribeVpcs&X-Amz-Signature=abc", nil))
	if w.Code != 200 {
		t.Error(w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	sim.ServeHTTP(w, httptest.NewRequest("GET", "/?Action=%zz", nil))
	if w.Code != 400 || !strings.Contains(w.Body.String(), "MalformedQueryString") {
		t.Error(w.Code, w.Body)
	}
}
