// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// A Setting is a value that an environment determines for requests to EC2 and to metadata.
type Setting struct {
	Name  string // for example "EC2"
	Value string // for example https://ec2-fips.us-east-1.amazonaws.com; without any secret
	By    string // the variables that chose the value; "" if none did
}

// Settings returns what a process with this environment would use. The settings are the endpoint of EC2, its CA
// certificates, a proxy, the endpoint of metadata, and credentials. They have the same names and the same order for all
// environments. The argument region is the instance's region. Settings uses it if the environment names no region. An
// error is about a variable with an invalid value, and the [Hint] of the error says where to correct the variable.
func (env Environment) Settings(ctx context.Context, region string) ([]Setting, error) {
	var s ec2.Options
	chosen, err := env.ec2(&s, Options{})
	if err != nil {
		return nil, err
	}
	if v := env.region(); v.value != "" && s.BaseEndpoint == nil {
		region, chosen = v.value, append(chosen, v.name)
	}
	bundle := env.first("AWS_CA_BUNDLE")
	if bundle.value != "" {
		if _, err := bundle.certificates(); err != nil {
			return nil, err
		}
	}
	metadata, err := env.metadata()
	if err != nil {
		return nil, err
	}
	at := endpointOf(ctx, s, region)
	return append([]Setting{
		{"EC2", at, strings.Join(chosen, " and ")},
		{"CA certificates", bundle.value, bundle.by()},
		{"metadata", metadata, env.first("AWS_EC2_METADATA_SERVICE_ENDPOINT",
			"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE").by()},
		env.access(),
	}, env.proxies(at)...), nil
}

// by returns the name of the variable if it is set, and "" otherwise.
func (v variable) by() string {
	if v.value == "" {
		return ""
	}
	return v.name
}

// access returns the setting of the credentials. The ID of an access key is no secret.
func (env Environment) access() Setting {
	id, _ := env.keys()
	if id == "" {
		return Setting{Name: "credentials", Value: "of the instance role"}
	}
	return Setting{"credentials", id, "AWS_ACCESS_KEY_ID"}
}

// proxies returns the settings for the proxy to an endpoint, and for the hosts without a proxy. The SDK reads the same
// variables. If both spellings are set, the spelling in capitals counts (net/http, ProxyFromEnvironment).
func (env Environment) proxies(endpoint string) []Setting {
	proxy, direct := env.first("HTTPS_PROXY", "https_proxy"), env.first("NO_PROXY", "no_proxy")
	if strings.HasPrefix(endpoint, "http://") {
		proxy = env.first("HTTP_PROXY", "http_proxy")
	}
	if proxy.value == "" {
		direct.value = "" // without a proxy, NO_PROXY has no effect
	}
	return []Setting{{"proxy", withoutUser(proxy.value), proxy.by()},
		{"hosts without proxy", direct.value, direct.by()}}
}

// withoutUser returns the URL of a proxy without user and password. The URL may have no scheme.
func withoutUser(proxy string) string {
	if proxy == "" {
		return ""
	}
	if !strings.Contains(proxy, "://") {
		proxy = "http://" + proxy
	}
	u, err := url.Parse(proxy)
	if err != nil {
		return "a value that is no URL" // url.Parse's error would show the password
	}
	u.User = nil
	return u.String()
}

// Unread returns the names of those variables of the environment that other programs of AWS read, and that the programs
// of this suite ignore.
func (env Environment) Unread() (names []string) {
	for _, name := range []string{
		"AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
	} {
		if env(name) != "" {
			names = append(names, name)
		}
	}
	return names
}
