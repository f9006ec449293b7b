// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// environment returns an Environment with these variables.
func environment(env map[string]string) aws.Environment {
	return func(name string) string { return env[name] }
}

// settings returns the Settings of an environment as lines. It leaves out empty settings.
func settings(t *testing.T, env map[string]string, region string) string {
	t.Helper()
	all, err := environment(env).Settings(t.Context(), region)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range all {
		if s.Value != "" {
			lines = append(lines, strings.TrimSpace(s.Name+" "+s.Value+" "+s.By))
		}
	}
	return strings.Join(lines, "\n")
}

func TestSettings(t *testing.T) {
	bundle := bundle(t, secure(t))
	for name, tt := range map[string]struct {
		env  map[string]string
		want string
	}{
		"nothing": {nil, "EC2 https://ec2.eu-west-1.amazonaws.com\nmetadata http://169.254.169.254\ncredentials of " +
			"the instance role"},
		"all": {
			map[string]string{
				"AWS_REGION": "us-gov-west-1", "AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true",
				"AWS_CA_BUNDLE": bundle,
				"HTTPS_PROXY":   "http://me:secret@proxy.test:3128", "no_proxy": "10.0.0.0/8",
				"HTTP_PROXY":                             "http://other.test",
				"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6", "AWS_ACCESS_KEY_ID": "AKID",
				"AWS_SECRET_ACCESS_KEY": "secret",
			},
			"EC2 https://ec2-fips.us-gov-west-1.api.aws AWS_USE_FIPS_ENDPOINT and AWS_USE_DUALSTACK_ENDPOINT and " +
				"AWS_REGION\n" +
				"CA certificates " + bundle +
				" AWS_CA_BUNDLE\nmetadata http://[fd00:ec2::254] AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE\n" +
				"credentials AKID AWS_ACCESS_KEY_ID\nproxy http://proxy.test:3128 HTTPS_PROXY\nhosts without proxy " +
				"10.0.0.0/8 no_proxy",
		},
		"a URL": {
			map[string]string{"AWS_ENDPOINT_URL": "http://ec2.test", "AWS_REGION": "us-east-1", "HTTPS_PROXY": "x",
				"http_proxy": "me:secret@proxy.test:3128", "AWS_ACCESS_KEY_ID": "AKID"},
			"EC2 http://ec2.test AWS_ENDPOINT_URL\nmetadata http://169.254.169.254\ncredentials of the instance " +
				"role\nproxy http://proxy.test:3128 http_proxy",
		},
		"a proxy that is no URL": {
			map[string]string{"HTTPS_PROXY": "http://me:secret@%zz"},
			"EC2 https://ec2.eu-west-1.amazonaws.com\nmetadata http://169.254.169.254\ncredentials of the instance " +
				"role\nproxy a value that is no URL HTTPS_PROXY",
		},
		"no proxy": {
			map[string]string{"NO_PROXY": "10.0.0.0/8"},
			"EC2 https://ec2.eu-west-1.amazonaws.com\nmetadata http://169.254.169.254\ncredentials of the instance " +
				"role",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, settings(t, tt.env, "eu-west-1")); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

// TestInvalidSettings: Settings refuses the same values as a call to EC2.
func TestInvalidSettings(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_USE_FIPS_ENDPOINT": "yes", "AWS_CA_BUNDLE": "/nowhere.pem",
		"AWS_EC2_METADATA_SERVICE_ENDPOINT": "169.254.169.254", "AWS_REGION": "us-east-1a",
	} {
		_, err := environment(map[string]string{name: value}).Settings(t.Context(), "us-east-1")
		if err == nil || !strings.HasPrefix(err.Error(), name+`="`+value+`": `) ||
			!strings.Contains(aws.Hint(err), "cni-ipvlan-vpc-k8s.env") {
			t.Errorf("got %v, hint %q", err, aws.Hint(err))
		}
	}
}

func TestUnread(t *testing.T) {
	got := environment(map[string]string{"AWS_PROFILE": "pods", "AWS_REGION": "us-east-1",
		"AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token", "AWS_ROLE_ARN": ""}).Unread()
	if !slices.Equal(got, []string{"AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"}) {
		t.Errorf("got %q", got)
	}
}

// TestAsked: the Client does not reach EC2. The hint must name the endpoint, and the variables that have chosen it.
func TestAsked(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"AWS_REGION", "eu-west-1", "; the endpoint is https://ec2.eu-west-1.amazonaws.com, because of the region"},
		{"AWS_USE_FIPS_ENDPOINT", "true",
			"; the endpoint is https://ec2-fips.us-east-1.amazonaws.com, because of AWS_USE_FIPS_ENDPOINT"},
		{"AWS_ENDPOINT_URL", "https://vpce.test", "; the endpoint is https://vpce.test, because of AWS_ENDPOINT_URL"},
	} {
		inBubble(t, tt.name, func(t *testing.T) {
			t.Setenv(tt.name, tt.value)
			silent := doer(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})
			err := aws.New(aws.Options{HTTP: silent, Attempts: 1}).DetachENI(t.Context(), "eni-attach-1")
			if hint := aws.Hint(err); !strings.HasSuffix(hint, tt.want) ||
				!strings.Contains(hint, "VPC endpoint for ec2") {
				t.Errorf("got %v, hint %q", err, hint)
			}
		})
	}
}

// TestPartition compares the partitions with those of the SDK.
func TestPartition(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/aws-sdk-go-v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)),
		"internal/endpoints/awsrulesfn/partitions.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Partitions []struct {
			ID, RegionRegex string
			Regions         map[string]any
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	count, known := 0, aws.Partitions()
	for _, p := range file.Partitions {
		for region := range p.Regions {
			if !regexp.MustCompile(p.RegionRegex).MatchString(region) {
				continue // a pseudo region, such as aws-cn-global
			}
			count++
			if got := aws.Partition(region); got != p.ID || !slices.Contains(known, p.ID) {
				t.Errorf("%s is in %s, want %s", region, got, p.ID)
			}
		}
	}
	if count < 30 || aws.Partition("") != "aws" {
		t.Errorf("%d regions; without a region: %s", count, aws.Partition(""))
	}
}
