// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestEndpointOfRegion checks to which host the Client sends a request, and for which region it signs the request.
func TestEndpointOfRegion(t *testing.T) {
	tests := []struct {
		name   string
		env    []string // names and values
		region string   // the region that metadata shows
		want   string
	}{
		{"a region", []string{"AWS_REGION", "eu-north-1"}, "", "https://ec2.eu-north-1.amazonaws.com for eu-north-1"},
		{"the default region", []string{"AWS_DEFAULT_REGION", "eu-west-1"}, "",
			"https://ec2.eu-west-1.amazonaws.com for eu-west-1"},
		{"of metadata", nil, "ap-southeast-2", "https://ec2.ap-southeast-2.amazonaws.com for ap-southeast-2"},
		{"China", nil, "cn-north-1", "https://ec2.cn-north-1.amazonaws.com.cn for cn-north-1"},
		{"China, dual stack", []string{"AWS_USE_DUALSTACK_ENDPOINT", "true"}, "cn-northwest-1",
			"https://ec2.cn-northwest-1.api.amazonwebservices.com.cn for cn-northwest-1"},
		{"GovCloud", nil, "us-gov-west-1", "https://ec2.us-gov-west-1.amazonaws.com for us-gov-west-1"},
		{"GovCloud, FIPS and dual stack", []string{"AWS_USE_FIPS_ENDPOINT", "true", "AWS_USE_DUALSTACK_ENDPOINT",
			"true"}, "us-gov-west-1", "https://ec2-fips.us-gov-west-1.api.aws for us-gov-west-1"},
		{"the European sovereign cloud", nil, "eusc-de-east-1",
			"https://ec2.eusc-de-east-1.amazonaws.eu for eusc-de-east-1"},
		{"GovCloud, FIPS", []string{"AWS_USE_FIPS_ENDPOINT", "true"}, "us-gov-east-1",
			"https://ec2.us-gov-east-1.amazonaws.com for us-gov-east-1"},
		{"FIPS", []string{"AWS_USE_FIPS_ENDPOINT", "true"}, "us-east-2",
			"https://ec2-fips.us-east-2.amazonaws.com for us-east-2"},
		{"dual stack", []string{"AWS_USE_DUALSTACK_ENDPOINT", "TRUE"}, "us-east-2",
			"https://ec2.us-east-2.api.aws for us-east-2"},
		{"FIPS and dual stack", []string{"AWS_USE_FIPS_ENDPOINT", "true", "AWS_USE_DUALSTACK_ENDPOINT", "true"},
			"us-east-2", "https://ec2-fips.us-east-2.api.aws for us-east-2"},
		{"neither", []string{"AWS_USE_FIPS_ENDPOINT", "false", "AWS_USE_DUALSTACK_ENDPOINT", "False"}, "us-east-2",
			"https://ec2.us-east-2.amazonaws.com for us-east-2"},
		{"a VPC endpoint", []string{"AWS_ENDPOINT_URL_EC2", "https://vpce-1.ec2.us-east-1.vpce.amazonaws.com",
			"AWS_ENDPOINT_URL", "https://other.test"}, "us-east-1",
			"https://vpce-1.ec2.us-east-1.vpce.amazonaws.com for us-east-1"},
		{"one endpoint for all services", []string{"AWS_ENDPOINT_URL", "https://all.test"}, "us-east-1",
			"https://all.test for us-east-1"},
		{"an endpoint to ignore", []string{"AWS_ENDPOINT_URL_EC2", "https://vpce.test", "AWS_ENDPOINT_URL",
			"https://all.test", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"}, "us-east-1",
			"https://ec2.us-east-1.amazonaws.com for us-east-1"},
		{"an endpoint to ignore, FIPS", []string{"AWS_ENDPOINT_URL", "https://all.test",
			"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True", "AWS_USE_FIPS_ENDPOINT", "true"}, "us-east-1",
			"https://ec2-fips.us-east-1.amazonaws.com for us-east-1"},
		{"an endpoint not to ignore", []string{"AWS_ENDPOINT_URL", "https://all.test",
			"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "false"}, "us-east-1", "https://all.test for us-east-1"},
		{"a region of a simulator", []string{"AWS_ENDPOINT_URL", "https://all.test", "AWS_REGION", "local"}, "",
			"https://all.test for local"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("AWS_REGION", "")
			for i := 0; i < len(tt.env); i += 2 {
				t.Setenv(tt.env[i], tt.env[i+1])
			}
			document := tree{"/latest/dynamic/instance-identity/document": `{"availabilityZone": "` + tt.region +
				`a", "instanceId": "i-1", "instanceType": "m5.large", "region": "` + tt.region + `"}`}
			var got string
			c := aws.New(aws.Options{MetadataURL: "http://metadata.test", Attempts: 1,
				HTTP: doer(func(r *http.Request) (*http.Response, error) {
					if r.URL.Host == "metadata.test" {
						return ec2sim.Direct{Handler: document}.Do(r)
					}
					// AWS4-HMAC-SHA256 Credential=ID/date/region/service/...
					signed := strings.Split(r.Header.Get("Authorization"), "/")
					got = r.URL.Scheme + "://" + r.URL.Host + " for " + signed[2]
					return nil, io.EOF
				})})
			if err := c.DetachENI(t.Context(), "eni-attach-1"); got != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
		})
	}
}

// TestMetadataMode checks to which address the Client sends requests for metadata.
func TestMetadataMode(t *testing.T) {
	for _, tt := range []struct{ endpoint, mode, want string }{
		{"", "", "http://169.254.169.254"},
		{"", "ipv4", "http://169.254.169.254"},
		{"", "IPv6", "http://[fd00:ec2::254]"},
		{"http://metadata.test", "IPv6", "http://metadata.test"},
	} {
		inBubble(t, tt.endpoint+tt.mode, func(t *testing.T) {
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", tt.endpoint)
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", tt.mode)
			var got string
			c := aws.New(aws.Options{HTTP: doer(func(r *http.Request) (*http.Response, error) {
				got = r.URL.Scheme + "://" + r.URL.Host
				return nil, io.EOF
			})})
			if _, err := c.ENIs(t.Context()); got != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
		})
	}
}

// TestInvalidEnvironment checks that an invalid value causes an error that names the variable. The Client must send no
// request.
func TestInvalidEnvironment(t *testing.T) {
	dir := t.TempDir()
	empty, missing := filepath.Join(dir, "empty.pem"), filepath.Join(dir, "missing.pem")
	if err := os.WriteFile(empty, []byte("no certificate\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		env  []string // names and values
		want string
	}{
		{[]string{"AWS_USE_FIPS_ENDPOINT", "yes"}, `AWS_USE_FIPS_ENDPOINT="yes": want true or false`},
		{[]string{"AWS_USE_DUALSTACK_ENDPOINT", "1"}, `AWS_USE_DUALSTACK_ENDPOINT="1": want true or false`},
		{[]string{"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "no"},
			`AWS_IGNORE_CONFIGURED_ENDPOINT_URLS="no": want true or false`},
		{[]string{"AWS_USE_FIPS_ENDPOINT", "true", "AWS_ENDPOINT_URL_EC2", "https://ec2.test"},
			`AWS_USE_FIPS_ENDPOINT="true": AWS_ENDPOINT_URL_EC2 already names the endpoint, https://ec2.test: set ` +
				`only one of these two variables`},
		{[]string{"AWS_USE_DUALSTACK_ENDPOINT", "true", "AWS_ENDPOINT_URL", "https://ec2.test"},
			`AWS_USE_DUALSTACK_ENDPOINT="true": AWS_ENDPOINT_URL already names the endpoint, https://ec2.test: set ` +
				`only one of these two variables`},
		{[]string{"AWS_ENDPOINT_URL_EC2", "ec2.test"},
			`AWS_ENDPOINT_URL_EC2="ec2.test": want a URL that begins with https:// or http://`},
		{[]string{"AWS_ENDPOINT_URL", "https://"},
			`AWS_ENDPOINT_URL="https://": want a URL that begins with https:// or http://`},
		{[]string{"AWS_REGION", "us-east-1a"}, `AWS_REGION="us-east-1a": want a region, such as us-east-1`},
		{[]string{"AWS_REGION", "", "AWS_DEFAULT_REGION", "Ireland 1"},
			`AWS_DEFAULT_REGION="Ireland 1": want a region, such as us-east-1`},
		{[]string{"AWS_CA_BUNDLE", missing}, `AWS_CA_BUNDLE="` + missing +
			`": no such file or directory: want a file with CA certificates (PEM)`},
		{[]string{"AWS_CA_BUNDLE", dir}, `AWS_CA_BUNDLE="` + dir +
			`": is a directory: want a file with CA certificates (PEM)`},
		{[]string{"AWS_CA_BUNDLE", empty}, `AWS_CA_BUNDLE="` + empty +
			`": the file has no certificate: want a file with CA certificates (PEM)`},
		{[]string{"AWS_REGION", "", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "169.254.169.254"},
			`AWS_EC2_METADATA_SERVICE_ENDPOINT="169.254.169.254": want a URL that begins with https:// or http://`},
		{[]string{"AWS_REGION", "", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "6"},
			`AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE="6": want IPv4 or IPv6`},
		{[]string{"AWS_REGION", "", "AWS_EC2_METADATA_DISABLED", "True"},
			`AWS_EC2_METADATA_DISABLED="True": this program needs metadata: want false, or no such variable`},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.env, " "), func(t *testing.T) {
			for i := 0; i < len(tt.env); i += 2 {
				t.Setenv(tt.env[i], tt.env[i+1])
			}
			err := aws.New(aws.Options{}).DetachENI(t.Context(), "eni-attach-1")
			if err == nil || err.Error() != "DetachNetworkInterface: "+tt.want || aws.MaybeDone(err) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if hint := aws.Hint(err); !strings.Contains(hint, "unit of the container runtime") {
				t.Errorf("hint %q", hint)
			}
		})
	}
}

// bundle writes the certificate of a server to a file, and returns the file's path.
func bundle(t *testing.T, s *httptest.Server) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// secure starts a simulated EC2 with TLS. No system trusts its certificate.
func secure(t *testing.T) *httptest.Server {
	t.Helper()
	sim, _, _ := world(t, "m5.large")
	s := httptest.NewUnstartedServer(sim)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // discards messages about refused certificates
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// TestCABundle checks that the Client verifies EC2's certificate with the certificates of AWS_CA_BUNDLE.
func TestCABundle(t *testing.T) {
	server := secure(t)
	t.Setenv("AWS_ENDPOINT_URL_EC2", server.URL)
	err := drop(aws.New(aws.Options{Attempts: 1}).Limits(t.Context(), "m5.large"))
	if !errors.Is(err, aws.ErrTransient) || !strings.Contains(aws.Hint(err), "AWS_CA_BUNDLE") || aws.MaybeDone(err) {
		t.Errorf("without it: got %v, hint %q", err, aws.Hint(err))
	}
	t.Setenv("AWS_CA_BUNDLE", bundle(t, server))
	if err := drop(aws.New(aws.Options{}).Limits(t.Context(), "m5.large")); err != nil {
		t.Errorf("with it: got %v", err)
	}
}

// TestNoSuchEndpoint: the endpoint's host name has no address. The hint must name the variables that choose the
// endpoint.
func TestNoSuchEndpoint(t *testing.T) {
	unknown := doer(func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "ec2.test",
			IsNotFound: true}}
	})
	err := aws.New(aws.Options{HTTP: unknown, Attempts: 1}).DetachENI(t.Context(), "eni-attach-1")
	if !errors.Is(err, aws.ErrTransient) || !strings.Contains(aws.Hint(err), "AWS_USE_FIPS_ENDPOINT") {
		t.Errorf("got %v, hint %q", err, aws.Hint(err))
	}
}
