// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

var update = flag.Bool("update", false, "write what the tests got into testdata")

// TestENIs: each archive is the metadata of an instance, and the ENIs in it.
func TestENIs(t *testing.T) {
	files, err := filepath.Glob("testdata/metadata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			enis, err := client(http.NotFoundHandler(), metadataOf(a)).ENIs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got, want := format(enis), &a.Files[len(a.Files)-1].Data
			if *update {
				*want = []byte(got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(*want), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// metadataOf is a metadata service with the files of the archive as keys.
func metadataOf(a *txtar.Archive) tree {
	m := make(tree)
	for _, f := range a.Files {
		m["/latest/meta-data/"+f.Name] = string(bytes.TrimSpace(f.Data)) // real ones do not end in a newline
	}
	return m
}

// format writes ENIs a field on a line, leaving out what is zero.
func format(enis []aws.ENI) string {
	var b strings.Builder
	for _, e := range enis {
		fmt.Fprintf(&b, "card %d index %d\n", e.Card, e.Index)
		for f, v := range reflect.ValueOf(e).Fields() {
			if f.Name != "Card" && f.Name != "Index" && !v.IsZero() {
				fmt.Fprintf(&b, "\t%s %v\n", f.Name, v)
			}
		}
		if e.Gateway().IsValid() || e.DNS().IsValid() {
			fmt.Fprintf(&b, "\tgateway %v, DNS %v\n", e.Gateway(), e.DNS())
		}
	}
	return b.String()
}

func TestInstance(t *testing.T) {
	const document = `{"accountId": "123456789012", "availabilityZone": "us-east-1a", "instanceId": "i-1", "instanceType": "m5.large", "region": "us-east-1", "pendingTime": "2026-01-02T03:04:05Z"}`
	var reads atomic.Int32
	m := tree{"/latest/dynamic/instance-identity/document": document, "/latest/meta-data/mac": "0a:00:00:00:00:01"}
	c := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reads.Add(1)
		m.ServeHTTP(w, r)
	}))
	want := aws.Instance{ID: "i-1", Type: "m5.large", Zone: "us-east-1a", Region: "us-east-1", Account: "123456789012", MAC: "0a:00:00:00:00:01"}
	for range 2 {
		if got, err := c.Instance(t.Context()); got != want || err != nil {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if n := reads.Load(); n != 4 {
		t.Errorf("%d requests for a token, the document, and the MAC twice", n)
	}
}

// TestNoMetadata: a machine outside of EC2 is told so at once.
func TestNoMetadata(t *testing.T) {
	start := time.Now()
	c := aws.New(aws.Options{MetadataURL: "http://127.0.0.1:1"})
	_, err := c.Instance(t.Context())
	const want = "EC2 metadata is not available at http://127.0.0.1:1: is this an EC2 instance? ("
	if !errors.Is(err, aws.ErrNoMetadata) || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want %s", err, want)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("it took %v", d)
	}
	if _, err := c.ENIs(t.Context()); !errors.Is(err, aws.ErrNoMetadata) {
		t.Errorf("ENIs: got %v, want ErrNoMetadata", err)
	}
}

// TestMetadataFaults: what metadata answers is not always metadata.
func TestMetadataFaults(t *testing.T) {
	status := func(n int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(n) })
	}
	document := func(text string) http.Handler {
		return tree{"/latest/dynamic/instance-identity/document": text, "/latest/meta-data/mac": "0a:00:00:00:00:01"}
	}
	tests := []struct {
		name     string
		metadata http.Handler
		want     string
		hint     string
	}{
		{"switched off", status(403), "EC2 metadata /latest/dynamic/instance-identity/document: 403 Forbidden", "metadata is switched off: aws ec2 modify-instance-metadata-options --http-endpoint enabled"},
		{"out of order", status(500), "EC2 metadata /latest/dynamic/instance-identity/document: 500 Internal Server Error", ""},
		{"no document", tree{}, "EC2 metadata /latest/dynamic/instance-identity/document: 404 Not Found", ""},
		{"not a document", document("<html>"), "EC2 metadata /latest/dynamic/instance-identity/document: ", ""},
	}
	for _, tt := range tests {
		inBubble(t, tt.name, func(t *testing.T) {
			_, err := client(http.NotFoundHandler(), tt.metadata).Instance(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || errors.Is(err, aws.ErrNoMetadata) || aws.Hint(err) != tt.hint {
				t.Errorf("got %v, hint %q, want %s, hint %q", err, aws.Hint(err), tt.want, tt.hint)
			}
		})
	}
}

// TestENIsFaults: an ENI that cannot be read is left out, never returned in part; that
// none can be read is an error; and a caller out of time is told that, not fewer ENIs.
func TestENIsFaults(t *testing.T) {
	a, err := txtar.ParseFile("testdata/metadata/c5.txtar")
	if err != nil {
		t.Fatal(err)
	}
	m := metadataOf(a)
	failing := func(suffix string) *aws.Client {
		return client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, suffix) {
				w.WriteHeader(500)
				return
			}
			m.ServeHTTP(w, r)
		}))
	}
	inBubble(t, "one", func(t *testing.T) {
		enis, err := failing("0a:00:00:00:00:01/local-ipv4s").ENIs(t.Context())
		if err != nil || len(enis) != 1 || enis[0].ID != "eni-0" {
			t.Errorf("got %v, %v, want eni-0 alone", enis, err)
		}
	})
	inBubble(t, "all", func(t *testing.T) {
		enis, err := failing("/local-ipv4s").ENIs(t.Context())
		if err == nil || enis != nil || !strings.Contains(err.Error(), "/local-ipv4s: 500 Internal Server Error") {
			t.Errorf("got %v, %v, want an error", enis, err)
		}
	})
	inBubble(t, "time", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "0a:00:00:00:00:01/local-ipv4s") {
				<-r.Context().Done()
			}
			m.ServeHTTP(w, r)
		}))
		enis, err := c.ENIs(ctx)
		if enis != nil || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, aws.ErrNoMetadata) {
			t.Errorf("got %v, %v, want DeadlineExceeded", enis, err)
		}
	})
}

// TestMetadataManners: one token, IMDSv2 or nothing, and not too much at once.
func TestMetadataManners(t *testing.T) {
	a, err := txtar.ParseFile("testdata/metadata/cards.txtar")
	if err != nil {
		t.Fatal(err)
	}
	m := metadataOf(a)
	var mu sync.Mutex
	var tokens, now, most, without int
	count := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }
	inBubble(t, "ENIs", func(t *testing.T) {
		c := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			count(func() {
				now++
				most = max(most, now)
				switch {
				case r.Method == http.MethodPut:
					tokens++
				case r.Header.Get("X-Aws-Ec2-Metadata-Token") == "":
					without++
				}
			})
			defer count(func() { now-- })
			time.Sleep(time.Millisecond)
			m.ServeHTTP(w, r)
		}))
		if _, err := c.ENIs(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if tokens != 1 || without != 0 || most != 8 {
		t.Errorf("%d tokens, %d requests without one, %d at once; want 1, 0, 8", tokens, without, most)
	}
	inBubble(t, "no fallback", func(t *testing.T) {
		c := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			io.WriteString(w, "0a:00:00:00:00:01") // IMDSv1 is there, and not wanted
		}))
		if enis, err := c.ENIs(t.Context()); err == nil {
			t.Errorf("got %v without a token", enis)
		}
	})
}

// TestRegionAndRole: without an environment, both come from metadata, when EC2 is
// first called and not before.
func TestRegionAndRole(t *testing.T) {
	for _, v := range []string{"AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(v, "")
	}
	role := tree{
		"/latest/dynamic/instance-identity/document":           `{"region": "eu-north-1"}`,
		"/latest/meta-data/iam/security-credentials/":          "node",
		"/latest/meta-data/iam/security-credentials/node":      `{"Code": "Success", "AccessKeyId": "AKIDROLE", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}`,
		"/latest/meta-data/iam/security-credentials/untrusted": `{"Code": "AssumeRoleUnauthorizedAccess", "Message": "EC2 cannot assume the role untrusted."}`,
	}
	var authorization string
	ec2 := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization = r.Header.Get("Authorization")
		answer(w, "AssignPrivateIpAddresses", assigned)
	})
	t.Run("from metadata", func(t *testing.T) {
		if _, err := client(ec2, role).Assign(t.Context(), "eni-1", 1); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(authorization, "AKIDROLE/") || !strings.Contains(authorization, "/eu-north-1/ec2/") {
			t.Errorf("Authorization: %s", authorization)
		}
	})
	t.Run("from the environment", func(t *testing.T) {
		t.Setenv("AWS_DEFAULT_REGION", "eu-west-1")
		t.Setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
		if _, err := client(ec2, http.NotFoundHandler()).Assign(t.Context(), "eni-1", 1); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(authorization, "AKIDENV/") || !strings.Contains(authorization, "/eu-west-1/ec2/") {
			t.Errorf("Authorization: %s", authorization)
		}
	})
	tests := []struct {
		name, path, text string
		want, hint       string
	}{
		{"no role", "/latest/meta-data/iam/security-credentials/", "",
			"AssignPrivateIpAddresses: EC2 metadata /latest/meta-data/iam/security-credentials/: 404 Not Found",
			"attach an instance profile whose role allows ec2:AssignPrivateIpAddresses"},
		{"a role that EC2 may not assume", "/latest/meta-data/iam/security-credentials/", "untrusted",
			"AssignPrivateIpAddresses: AssumeRoleUnauthorizedAccess: EC2 cannot assume the role untrusted.",
			"the role of the instance profile must trust ec2.amazonaws.com"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := make(tree)
			for k, v := range role {
				m[k] = v
			}
			if m[tt.path] = tt.text; tt.text == "" {
				delete(m, tt.path)
			}
			_, err := client(ec2, m).Assign(t.Context(), "eni-1", 1)
			if err == nil || err.Error() != tt.want || !errors.Is(err, aws.ErrDenied) || errors.Is(err, aws.ErrNotFound) || aws.Hint(err) != tt.hint {
				t.Errorf("got %v, hint %q, want %s, hint %q", err, aws.Hint(err), tt.want, tt.hint)
			}
		})
	}
	t.Run("not EC2", func(t *testing.T) {
		_, err := aws.New(aws.Options{MetadataURL: "http://127.0.0.1:1"}).Assign(t.Context(), "eni-1", 1)
		if !errors.Is(err, aws.ErrNoMetadata) || !strings.HasPrefix(err.Error(), "AssignPrivateIpAddresses: EC2 metadata is not available at") {
			t.Errorf("got %v, want ErrNoMetadata", err)
		}
	})
}

// TestEndpoints: the two variables that point at a simulator, and no proxy between an
// instance and its metadata.
func TestEndpoints(t *testing.T) {
	served := func(h http.Handler) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("AWS_ENDPOINT_URL_EC2", served(&clerk{}))
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", served(tree{"/latest/meta-data/mac": "x", "/latest/meta-data/network/interfaces/macs/": ""}))
	c := aws.New(aws.Options{})
	if _, err := c.Assign(t.Context(), "eni-1", 1); err != nil {
		t.Error(err)
	}
	if enis, err := c.ENIs(t.Context()); len(enis) != 0 || err != nil {
		t.Errorf("got %v, %v, want no ENIs", enis, err)
	}
}
