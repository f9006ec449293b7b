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
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

var update = flag.Bool("update", false, "write what the tests got into testdata")

// TestENIs reads archives. Each archive has the metadata of an instance, and the ENIs that the Client must return for
// it.
func TestENIs(t *testing.T) {
	files, err := filepath.Glob("testdata/metadata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, file := range files {
		inBubble(t, strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
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

// metadataOf returns a metadata service with the files of the archive as keys. For a directory without a file, it lists
// the directory's keys. The list lacks the keys of prefixes, because AWS does not document whether the real list has
// these keys.
func metadataOf(a *txtar.Archive) tree {
	m := make(tree)
	for _, f := range a.Files {
		dir, base := path.Split("/latest/meta-data/" + f.Name)
		if !strings.HasSuffix(base, "-prefix") {
			m[dir] += base + "\n"
		}
	}
	for _, f := range a.Files {
		m["/latest/meta-data/"+f.Name] = string(bytes.TrimSpace(f.Data)) // real values do not end with a newline
	}
	return m
}

// format returns ENIs as text, with one field per line. It leaves out fields with the zero value.
func format(enis []aws.ENI) string {
	var b strings.Builder
	for _, e := range enis {
		fmt.Fprintf(&b, "card %d index %d\n", e.Card, e.Index)
		for f, v := range reflect.ValueOf(e).Fields() {
			if f.Name != "Card" && f.Name != "Index" && !v.IsZero() {
				fmt.Fprintf(&b, "\t%s %v\n", f.Name, v)
			}
		}
	}
	return b.String()
}

func TestInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const document = `{"accountId": "123456789012", "availabilityZone": "us-east-1a", "instanceId": "i-1", ` +
			`"instanceType": "m5.large", "region": "us-east-1", "pendingTime": "2026-01-02T03:04:05Z"}`
		var reads atomic.Int32
		m := tree{"/latest/dynamic/instance-identity/document": document, "/latest/meta-data/mac": "0a:00:00:00:00:01"}
		c := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			reads.Add(1)
			m.ServeHTTP(w, r)
		}))
		want := aws.Instance{ID: "i-1", Type: "m5.large", Zone: "us-east-1a", Region: "us-east-1",
			Account: "123456789012", MAC: "0a:00:00:00:00:01"}
		for range 2 {
			if got, err := c.Instance(t.Context()); got != want || err != nil {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		}
		if n := reads.Load(); n != 4 {
			t.Errorf("%d requests for a token, the document, and the MAC twice", n)
		}
	})
}

// TestNoMetadata checks that the Client soon returns an error on a machine outside EC2.
func TestNoMetadata(t *testing.T) {
	c := aws.New(aws.Options{MetadataURL: "http://127.0.0.1:1"})
	_, err := c.Instance(t.Context())
	const want = "EC2 metadata is not available at http://127.0.0.1:1: is this an EC2 instance? ("
	if !errors.Is(err, aws.ErrNoMetadata) || !strings.HasPrefix(err.Error(), want) ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := c.ENIs(t.Context()); !errors.Is(err, aws.ErrNoMetadata) {
		t.Errorf("ENIs: got %v, want ErrNoMetadata", err)
	}
	inBubble(t, "at once", func(t *testing.T) {
		start, refused := time.Now(), &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		c := aws.New(aws.Options{MetadataURL: "http://metadata.test",
			HTTP: doer(func(*http.Request) (*http.Response, error) { return nil, refused })})
		if _, err := c.Instance(t.Context()); !errors.Is(err, aws.ErrNoMetadata) {
			t.Errorf("got %v, want ErrNoMetadata", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestMetadataTimeout: with $AWS_METADATA_SERVICE_TIMEOUT, the Client waits for longer than a second.
func TestMetadataTimeout(t *testing.T) {
	t.Setenv("AWS_METADATA_SERVICE_TIMEOUT", "600")
	m := tree{"/latest/meta-data/mac": "0a:00:00:00:00:01", "/latest/meta-data/network/interfaces/macs/": ""}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select { // wait longer than the default timeout
		case <-time.After(1500 * time.Millisecond):
		case <-r.Context().Done():
		}
		m.ServeHTTP(w, r)
	}))
	defer server.Close()
	if _, err := aws.New(aws.Options{MetadataURL: server.URL}).ENIs(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestMetadataFaults: the metadata service refuses a request, or another program answers it. The error and its hint
// must show the cause.
func TestMetadataFaults(t *testing.T) {
	status := func(n int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(n) })
	}
	document := func(text string) http.Handler {
		return tree{"/latest/dynamic/instance-identity/document": text, "/latest/meta-data/mac": "0a:00:00:00:00:01"}
	}
	// imdsv1 returns a metadata service without session tokens, or a proxy in its place. It answers a request for a
	// token with the status n.
	imdsv1 := func(n int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				w.WriteHeader(n)
				return
			}
			io.WriteString(w, "0a:00:00:00:00:01")
		})
	}
	const (
		noToken = "EC2 metadata /latest/dynamic/instance-identity/document: the service gives no session token " +
			"(IMDSv2): PUT /latest/api/token: "
		imdsv2 = "this program needs IMDSv2, and the server at http://metadata.test lacks IMDSv2. So this server is " +
			"not EC2's. If it is a proxy, such as kube2iam, the proxy must let requests of the node itself pass"
	)
	tests := []struct {
		name     string
		metadata http.Handler
		want     string
		hint     string
	}{
		{"switched off", status(403), noToken + "403 Forbidden",
			"metadata is switched off. To switch it on, run aws ec2 modify-instance-metadata-options --instance-id " +
				"ID --http-endpoint enabled"},
		{"out of order", status(500), noToken + "500 Internal Server Error", ""},
		{"IMDSv1 alone", imdsv1(404), noToken + "404 Not Found", imdsv2},
		{"no PUT", imdsv1(405), noToken + "405 Method Not Allowed", imdsv2},
		{"no document", tree{}, "EC2 metadata /latest/dynamic/instance-identity/document: 404 Not Found", ""},
		{"busy", status(429), noToken + "429 Too Many Requests",
			"the metadata service limits the requests of this instance per second. Find out which program of the " +
				"instance asks so often"},
		{"not a document", document("<html>"), "EC2 metadata /latest/dynamic/instance-identity/document: ", ""},
		{"an empty document", document("{}"), "EC2 metadata /latest/dynamic/instance-identity/document: this is no " +
			"identity document of an instance: it has no instanceId", ""},
		{"a document without ID",
			document(`{"availabilityZone": "us-east-1a", "instanceType": "m5.large", "region": "us-east-1"}`),
			"EC2 metadata /latest/dynamic/instance-identity/document: this is no identity document of an instance: " +
				"it has no instanceId", ""},
		{"another kind of ID",
			document(`{"availabilityZone": "us-east-1a", "instanceId": "mi-1", "instanceType": "m5.large", ` +
				`"region": "us-east-1"}`),
			`EC2 metadata /latest/dynamic/instance-identity/document: this is no identity document of an instance: ` +
				`"mi-1" is not an ID that begins with i-`, ""},
		{"no type", document(`{"availabilityZone": "us-east-1a", "instanceId": "i-1", "region": "us-east-1"}`),
			"EC2 metadata /latest/dynamic/instance-identity/document: this is no identity document of an instance: " +
				"it has no instanceType", ""},
		{"no zone", document(`{"instanceId": "i-1", "instanceType": "m5.large", "region": "us-east-1"}`),
			"EC2 metadata /latest/dynamic/instance-identity/document: this is no identity document of an instance: " +
				"it has no availabilityZone", ""},
		{"no region", document(`{"availabilityZone": "us-east-1a", "instanceId": "i-1", "instanceType": "m5.large"}`),
			"EC2 metadata /latest/dynamic/instance-identity/document: this is no identity document of an instance: " +
				"it has no region", ""},
	}
	for _, tt := range tests {
		inBubble(t, tt.name, func(t *testing.T) {
			_, err := client(http.NotFoundHandler(), tt.metadata).Instance(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || errors.Is(err, aws.ErrNoMetadata) ||
				aws.Hint(err) != tt.hint {
				t.Errorf("got %v, hint %q, want %s, hint %q", err, aws.Hint(err), tt.want, tt.hint)
			}
		})
	}
}

// TestMetadataBusy: metadata answers "not now". The Client must repeat the request for some seconds, both for a token
// and for a value. If metadata does not answer at all, the Client must not repeat the request.
func TestMetadataBusy(t *testing.T) {
	m := tree{"/latest/meta-data/mac": "0a:00:00:00:00:01", "/latest/meta-data/network/interfaces/macs/": ""}
	for _, status := range []int{429, 500, 503} {
		for _, token := range []bool{false, true} {
			for _, busy := range []int{1, 5, 1000} {
				inBubble(t, fmt.Sprintf("%d %d times, token %v", status, busy, token), func(t *testing.T) {
					left, refused := busy, 0
					c := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if left > 0 && (r.Method == http.MethodPut) == token {
							left, refused = left-1, refused+1
							w.WriteHeader(status)
							return
						}
						m.ServeHTTP(w, r)
					}))
					start := time.Now()
					_, err := c.ENIs(t.Context())
					if took := time.Since(start); took > 4*time.Second || busy > 7 && took < time.Second ||
						refused > 7 {
						t.Errorf("it took %v and %d requests", took, refused)
					}
					if busy < 7 && err != nil || busy > 7 && (!errors.Is(err, aws.ErrTransient) ||
						errors.Is(err, aws.ErrNoMetadata)) {
						t.Errorf("got %v", err)
					}
				})
			}
		}
	}
	inBubble(t, "no time", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(429)
		})).ENIs(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "429 Too Many Requests") {
			t.Errorf("got %v, want the status and the deadline", err)
		}
	})
}

// TestENIsFaults: the Client omits an ENI that it cannot read, and never returns an incomplete ENI. If no ENI can be
// read, or after the deadline, the Client returns an error.
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

// TestMetadataManners: the Client asks for only one token, makes only IMDSv2 requests, and makes few requests at once.
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
	inBubble(t, "no credentials without a token", func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "")
		c := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNotFound)
		}))
		_, err := c.Assign(t.Context(), "eni-1", 1)
		if errors.Is(err, aws.ErrDenied) || !strings.HasPrefix(aws.Hint(err), "this program needs IMDSv2") {
			t.Errorf("got %v, hint %q", err, aws.Hint(err))
		}
	})
	inBubble(t, "no fallback", func(t *testing.T) {
		c := client(http.NotFoundHandler(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			io.WriteString(w, "0a:00:00:00:00:01") // IMDSv1 is available but must not be used
		}))
		if enis, err := c.ENIs(t.Context()); err == nil {
			t.Errorf("got %v without a token", enis)
		}
	})
}

// TestRegionAndRole: without environment variables, the region and the role's credentials come from metadata. The
// Client asks for them only before its first call to EC2.
func TestRegionAndRole(t *testing.T) {
	for _, v := range []string{"AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(v, "")
	}
	role := tree{
		"/latest/dynamic/instance-identity/document": `{"availabilityZone": "eu-north-1a", "instanceId": ` +
			`"i-1", "instanceType": "m5.large", "region": "eu-north-1"}`,
		"/latest/meta-data/iam/security-credentials/": "node",
		"/latest/meta-data/iam/security-credentials/node": `{"Code": "Success", "AccessKeyId": "AKIDROLE", ` +
			`"SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}`,
		"/latest/meta-data/iam/security-credentials/untrusted": `{"Code": "AssumeRoleUnauthorizedAccess", "Message": ` +
			`"EC2 cannot assume the role untrusted."}`,
	}
	var authorization string
	ec2 := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization = r.Header.Get("Authorization")
		answer(w, "AssignPrivateIpAddresses", assigned)
	})
	inBubble(t, "from metadata", func(t *testing.T) {
		if _, err := client(ec2, role).Assign(t.Context(), "eni-1", 1); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(authorization, "AKIDROLE/") || !strings.Contains(authorization, "/eu-north-1/ec2/") {
			t.Errorf("Authorization: %s", authorization)
		}
	})
	inBubble(t, "from the environment", func(t *testing.T) {
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
		inBubble(t, tt.name, func(t *testing.T) {
			m := make(tree)
			for k, v := range role {
				m[k] = v
			}
			if m[tt.path] = tt.text; tt.text == "" {
				delete(m, tt.path)
			}
			_, err := client(ec2, m).Assign(t.Context(), "eni-1", 1)
			if err == nil || err.Error() != tt.want || !errors.Is(err, aws.ErrDenied) ||
				errors.Is(err, aws.ErrNotFound) || aws.Hint(err) != tt.hint || !aws.Unsent(err) {
				t.Errorf("got %v, hint %q, sent %v, want %s, hint %q", err, aws.Hint(err), !aws.Unsent(err), tt.want,
					tt.hint)
			}
		})
	}
	inBubble(t, "not EC2", func(t *testing.T) {
		_, err := aws.New(aws.Options{MetadataURL: "http://127.0.0.1:1"}).Assign(t.Context(), "eni-1", 1)
		if !errors.Is(err, aws.ErrNoMetadata) || !strings.HasPrefix(err.Error(),
			"AssignPrivateIpAddresses: EC2 metadata is not available at") {
			t.Errorf("got %v, want ErrNoMetadata", err)
		}
	})
}

// TestEndpoints tests the two variables that make the Client use a simulator. It also checks that the Client never asks
// metadata through a proxy.
func TestEndpoints(t *testing.T) {
	served := func(h http.Handler) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("AWS_ENDPOINT_URL_EC2", served(&clerk{}))
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT",
		served(tree{"/latest/meta-data/mac": "x", "/latest/meta-data/network/interfaces/macs/": ""}))
	c := aws.New(aws.Options{})
	if _, err := c.Assign(t.Context(), "eni-1", 1); err != nil {
		t.Error(err)
	}
	if enis, err := c.ENIs(t.Context()); len(enis) != 0 || err != nil {
		t.Errorf("got %v, %v, want no ENIs", enis, err)
	}
}

// TestMetadataWithoutEnd: an answer does not end. The Client must read only as many bytes as a real answer may have.
func TestMetadataWithoutEnd(t *testing.T) {
	for _, endless := range []string{"/latest/api/token", "/latest/meta-data/mac"} {
		inBubble(t, endless, func(t *testing.T) {
			sent := 0
			flood := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != endless {
					w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
					fmt.Fprint(w, "token")
					return
				}
				for range 4 {
					n, _ := w.Write(bytes.Repeat([]byte("x"), 256<<10))
					sent += n
				}
			})
			_, err := client(http.NotFoundHandler(), flood).ENIs(t.Context())
			if err == nil || !strings.Contains(err.Error(), "larger than 256 KiB") || len(err.Error()) > 1000 {
				t.Errorf("got %.1000v", err)
			}
			if sent == 0 {
				t.Error("it was not asked")
			}
		})
	}
}
