// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMetadataTokens(t *testing.T) {
	_, i := start(t, world)
	token := newToken(t, i)
	for _, c := range []struct {
		name, method, path, header, value string
		want                              int
	}{
		{"read", "GET", "/latest/meta-data/mac", tokenHeader, token, 200},
		{"head", "HEAD", "/latest/meta-data/mac", tokenHeader, token, 200},
		{"no token", "GET", "/latest/meta-data/mac", "", "", 401},
		{"wrong token", "GET", "/latest/meta-data/mac", tokenHeader, "x", 401},
		{"write", "POST", "/latest/meta-data/mac", tokenHeader, token, 405},
		{"no key", "GET", "/latest/meta-data/colour", tokenHeader, token, 404},
		{"key that has nothing", "GET", "/latest/meta-data/network/interfaces/macs/06:00:00:00:00:01/ipv4-prefix",
			tokenHeader, token, 404},
		{"no ENI", "GET", "/latest/meta-data/network/interfaces/macs/06:00:00:00:00:99/", tokenHeader, token, 404},
		{"no lifetime", "PUT", "/latest/api/token", "", "", 400},
		{"lifetime of 0", "PUT", "/latest/api/token", ttlHeader, "0", 400},
		{"lifetime too long", "PUT", "/latest/api/token", ttlHeader, "21601", 400},
		{"lifetime in words", "PUT", "/latest/api/token", ttlHeader, "ten", 400},
		{"longest lifetime", "PUT", "/latest/api/token", ttlHeader, "21600", 200},
		{"token elsewhere", "PUT", "/latest/api/tokens", ttlHeader, "60", 405},
		{"through a proxy", "PUT", "/latest/api/token", "X-Forwarded-For", "10.0.0.1", 403},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		w := httptest.NewRecorder()
		i.Metadata().ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: got %d, want %d", c.name, w.Code, c.want)
		}
		if body := w.Body.String(); c.want == 404 && !strings.Contains(body, "404 - Not Found") {
			t.Errorf("%s: %s", c.name, body)
		}
	}
}

func TestMetadataTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, i := start(t, world)
		r := httptest.NewRequest("GET", "/latest/meta-data/mac", nil)
		r.Header.Set(tokenHeader, newToken(t, i))
		for _, want := range []int{200, 401} {
			w := httptest.NewRecorder()
			i.Metadata().ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("after %v: got %d, want %d", time.Since(i.launched), w.Code, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestMetadataCredentials(t *testing.T) {
	sim, _ := start(t, world)
	i := run(t, sim, RunInstance{Type: "t3.small", Subnet: "subnet-b", Role: "pods"})
	if _, got := get(t, i, "/latest/meta-data/iam/security-credentials/"); got != "pods" {
		t.Errorf("role %q", got)
	}
	_, text := get(t, i, "/latest/meta-data/iam/security-credentials/pods")
	var got struct{ Code, Type, AccessKeyId, SecretAccessKey, Token, Expiration string }
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	until, err := time.Parse(time.RFC3339, got.Expiration)
	if err != nil || time.Until(until) < 5*time.Hour || got.Code != "Success" || got.AccessKeyId == "" ||
		got.SecretAccessKey == "" || got.Token == "" {
		t.Errorf("%v in %s", err, text)
	}
}

// TestMetadataOfManyCards: metadata shows an ENI's card only if the instance has several cards.
func TestMetadataOfManyCards(t *testing.T) {
	sim, _ := start(t, world)
	i := run(t, sim, RunInstance{Type: "p4d.24xlarge", Subnet: "subnet-b"})
	must(t, sim, "CreateNetworkInterface SubnetId=subnet-b")
	must(t, sim, "AttachNetworkInterface InstanceId=i-2 NetworkInterfaceId=eni-3 DeviceIndex=0 NetworkCardIndex=3")
	for mac, want := range map[string]string{"06:00:00:00:00:02": "0 0", "06:00:00:00:00:03": "0 3"} {
		dir := "/latest/meta-data/network/interfaces/macs/" + mac + "/"
		_, index := get(t, i, dir+"device-number")
		_, card := get(t, i, dir+"network-card")
		if got := index + " " + card; got != want {
			t.Errorf("%s: got %q, want %q", mac, got, want)
		}
	}
}

// TestMetadataDelay: each change in EC2 appears in the metadata after the delay.
func TestMetadataDelay(t *testing.T) {
	c := world
	c.MetadataDelay = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		sim, i := start(t, c)
		shown := func() string {
			_, macs := get(t, i, "/latest/meta-data/network/interfaces/macs/")
			_, addrs := get(t, i, "/latest/meta-data/network/interfaces/macs/06:00:00:00:00:01/local-ipv4s")
			return strings.ReplaceAll(macs+" "+addrs, "\n", ",")
		}
		var got []string
		see := func() { got = append(got, time.Since(i.launched).String()+" "+shown()) }
		see()
		must(t, sim, "AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1")
		see()
		time.Sleep(5 * time.Second)
		must(t, sim, "CreateNetworkInterface SubnetId=subnet-b")
		must(t, sim, "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1")
		see()
		time.Sleep(5 * time.Second)
		see()
		time.Sleep(5 * time.Second)
		see()
		want := []string{
			"0s 06:00:00:00:00:01/ 10.0.0.4",
			"0s 06:00:00:00:00:01/ 10.0.0.4",
			"5s 06:00:00:00:00:01/ 10.0.0.4",
			"10s 06:00:00:00:00:01/ 10.0.0.4,10.0.0.5",
			"15s 06:00:00:00:00:01/,06:00:00:00:00:02/ 10.0.0.4,10.0.0.5",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestMetadataCalls(t *testing.T) {
	sim, i := start(t, world)
	get(t, i, "/latest/meta-data/mac")
	want := []string{"PUT /latest/api/token", "GET /latest/meta-data/mac"}
	if diff := cmp.Diff(want, i.MetadataCalls()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if calls := sim.Calls(); len(calls) != 0 {
		t.Errorf("EC2 calls: %v", calls)
	}
	sim.ResetCalls()
	if calls := i.MetadataCalls(); len(calls) != 0 {
		t.Errorf("after ResetCalls: %v", calls)
	}
}
