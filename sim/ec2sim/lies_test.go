// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"context"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// liar returns an instance with several cards. Its second ENI, eni-3, is at index 1 of card 1.
func liar(t *testing.T) (*Sim, *Instance) {
	sim, _ := start(t, world)
	i := run(t, sim, RunInstance{Type: "p4d.24xlarge", Subnet: "subnet-b"})
	must(t, sim, create+" SecondaryPrivateIpAddressCount=1")
	must(t, sim, "AttachNetworkInterface InstanceId=i-2 NetworkInterfaceId=eni-3 DeviceIndex=1 NetworkCardIndex=1")
	return sim, i
}

// says returns what the metadata shows of each ENI: the last byte of its MAC, its device number, its card and its
// addresses. If a request fails, says returns the HTTP status instead of the value.
func says(t *testing.T, i *Instance) string {
	const macs = "/latest/meta-data/network/interfaces/macs/"
	read := func(path string) string {
		code, text := ask(t, i, path)
		if code != 200 {
			return strconv.Itoa(code)
		}
		return strings.ReplaceAll(text, "\n", ",")
	}
	var all []string
	for mac := range strings.SplitSeq(read(macs), ",") {
		if !strings.HasSuffix(mac, "/") {
			return mac
		}
		one := []string{strings.TrimSuffix(mac, "/")[15:]}
		for _, key := range []string{"device-number", "network-card", "local-ipv4s"} {
			one = append(one, read(macs+mac+key))
		}
		all = append(all, strings.Join(one, " "))
	}
	return strings.Join(all, "; ")
}

// ask reads a key. It does not request a token, because a lie may also make this request fail.
func ask(t *testing.T, i *Instance, path string) (int, string) {
	t.Helper()
	i.metadata.Lock()
	i.metadata.tokens["test"] = time.Now().Add(time.Hour)
	i.metadata.Unlock()
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set(tokenHeader, "test")
	w := httptest.NewRecorder()
	i.Metadata().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestLies(t *testing.T) {
	const (
		truth   = "02 0 0 10.0.1.4; 03 1 1 10.0.1.5,10.0.1.6"
		more    = "02 0 0 10.0.1.4; 03 1 1 10.0.1.5,10.0.1.6,10.0.1.7"
		gone    = "02 0 0 10.0.1.4"
		assign  = "AssignPrivateIpAddresses NetworkInterfaceId=eni-3 SecondaryPrivateIpAddressCount=1"
		detach  = "DetachNetworkInterface AttachmentId=eni-attach-3"
		nothing = ""
	)
	eni := long("eni-3")
	for _, c := range []struct {
		name              string
		lie               Lie
		call              string // a call to EC2 during the lie
		before, then, end string // what metadata shows before the call, after the call, and after the lie
	}{
		{"ForgetENI", ForgetENI(eni), assign, gone, gone, more},
		{"KeepENI, attached", KeepENI(eni), assign, truth, more, more},
		{"KeepENI, detached", KeepENI(eni), detach, truth, truth, gone},
		{"FreezeENI, assigned to", FreezeENI(eni), assign, truth, truth, more},
		{"FreezeENI, detached", FreezeENI(eni), detach, truth, gone, gone},
		{"HideKeys", HideKeys(eni, "local-ipv4s", "device-number"), nothing,
			"02 0 0 10.0.1.4; 03 404 1 404", "", truth},
		{"HideENI", HideENI(eni), nothing, "02 0 0 10.0.1.4; 03 404 404 404", "", truth},
		{"ZeroDeviceNumber", ZeroDeviceNumber(eni), nothing, "02 0 0 10.0.1.4; 03 0 1 10.0.1.5,10.0.1.6", "", truth},
		{"LateNetworkCard", LateNetworkCard(eni), nothing, "02 0 0 10.0.1.4; 03 1 404 10.0.1.5,10.0.1.6", "", truth},
		{"FailENI", FailENI(eni), nothing, "02 0 0 10.0.1.4; 03 500 500 500", "", truth},
		{"Unavailable", Unavailable(), nothing, "503", "", truth},
		{"of no ENI", ForgetENI("eni-x"), assign, truth, more, more},
	} {
		t.Run(c.name, func(t *testing.T) {
			sim, i := liar(t)
			if got := says(t, i); got != truth {
				t.Fatalf("at first: %s", got)
			}
			stop := i.Lie(c.lie)
			got := []string{says(t, i), ""}
			if c.call != "" {
				must(t, sim, c.call)
				got[1] = says(t, i)
			}
			stop()
			got = append(got, says(t, i))
			if diff := cmp.Diff([]string{c.before, c.then, c.end}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestLiesAddUp: two lies about one ENI apply together, and each lie ends separately.
func TestLiesAddUp(t *testing.T) {
	_, i := liar(t)
	eni := long("eni-3")
	stop := i.Lie(ZeroDeviceNumber(eni))
	other := i.Lie(LateNetworkCard(eni))
	got := []string{says(t, i)}
	stop()
	got = append(got, says(t, i))
	other()
	other()
	got = append(got, says(t, i))
	want := []string{
		"02 0 0 10.0.1.4; 03 0 404 10.0.1.5,10.0.1.6",
		"02 0 0 10.0.1.4; 03 1 404 10.0.1.5,10.0.1.6",
		"02 0 0 10.0.1.4; 03 1 1 10.0.1.5,10.0.1.6",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLiesOfOneInstance: a lie does not affect another instance, or EC2.
func TestLiesOfOneInstance(t *testing.T) {
	sim, i := liar(t)
	i.Lie(ForgetENI(long("eni-3")), Unavailable())
	if got := says(t, sim.Instances()[0]); got != "01 0 404 10.0.0.4" {
		t.Error(got)
	}
	if got := len(i.ENIs()); got != 2 {
		t.Errorf("%d ENIs", got)
	}
}

// TestUnavailableGivesNoToken: with the lie Unavailable, the request for a token also fails.
func TestUnavailableGivesNoToken(t *testing.T) {
	_, i := liar(t)
	defer i.Lie(Unavailable())()
	r := httptest.NewRequest("PUT", "/latest/api/token", nil)
	r.Header.Set(ttlHeader, "60")
	w := httptest.NewRecorder()
	i.Metadata().ServeHTTP(w, r)
	if w.Code != 503 {
		t.Error(w.Code)
	}
}

// TestSilent: with the lie Silent, the caller gets no answer, however long it waits.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, i := liar(t)
		defer i.Lie(Silent())()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin, w := time.Now(), httptest.NewRecorder()
		i.Metadata().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/latest/meta-data/mac", nil))
		if took := time.Since(begin); took != time.Hour || w.Body.Len() != 0 {
			t.Errorf("%s after %v", w.Body, took)
		}
	})
}

// TestReboot: Reboot ends all earlier lies, and begins the lies in its arguments.
func TestReboot(t *testing.T) {
	sim, i := liar(t)
	i.Lie(KeepENI(long("eni-3")))
	must(t, sim, "DetachNetworkInterface AttachmentId=eni-attach-3")
	got := []string{says(t, i)}
	i.Reboot()
	got = append(got, says(t, i))
	must(t, sim, "AttachNetworkInterface InstanceId=i-2 NetworkInterfaceId=eni-3 DeviceIndex=1 NetworkCardIndex=1")
	remember := i.Reboot(ForgetENI(long("eni-3")))
	got = append(got, says(t, i))
	remember()
	got = append(got, says(t, i))
	want := []string{
		"02 0 0 10.0.1.4; 03 1 1 10.0.1.5,10.0.1.6",
		"02 0 0 10.0.1.4",
		"02 0 0 10.0.1.4",
		"02 0 0 10.0.1.4; 03 1 1 10.0.1.5,10.0.1.6",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
