// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"context"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// A Setting is a property of the requests to EC2 and to metadata. An Environment determines its value.
type Setting struct {
	Name  string // for example "EC2"
	Value string // for example https://ec2-fips.us-east-1.amazonaws.com; contains no secret
	By    string // the variables that determine Value; "" if Value is a default
}

// Settings returns the Settings that a process with this Environment would use: the endpoint of EC2, the CA
// certificates for this endpoint, the endpoint of metadata, the credentials, and the proxy. Their names and order are
// the same for all Environments. region is the instance's region, which counts only if the Environment names no region.
// If a variable has an invalid value, Settings returns an error. [Hint] has a hint for this error.
func (env Environment) Settings(ctx context.Context, region string) ([]Setting, error) {
	var s ec2.Options
	chosen, err := env.setEndpoint(&s, Options{})
	if err != nil {
		return nil, err
	}
	if v := env.regionVariable(); v.value != "" && s.BaseEndpoint == nil {
		region, chosen = v.value, append(chosen, v.name)
	}
	bundle := env.firstSet("AWS_CA_BUNDLE")
	if bundle.value != "" {
		if _, err := bundle.certificates(); err != nil {
			return nil, err
		}
	}
	metadata, err := env.metadataURL()
	if err != nil {
		return nil, err
	}
	at := endpointOf(ctx, s, region)
	return append([]Setting{
		{"EC2", at, strings.Join(chosen, " and ")},
		{"CA certificates", bundle.value, bundle.setName()},
		{"metadata", metadata, env.firstSet("AWS_EC2_METADATA_SERVICE_ENDPOINT",
			"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE").setName()},
		env.credentialsSetting(),
	}, env.proxySettings(at)...), nil
}

func (v variable) setName() string {
	if v.value == "" {
		return ""
	}
	return v.name
}

// credentialsSetting returns the Setting of the credentials. The ID of an access key is no secret.
func (env Environment) credentialsSetting() Setting {
	id, _ := env.accessKey()
	if id == "" {
		return Setting{Name: "credentials", Value: "of the instance role"}
	}
	return Setting{"credentials", id, "AWS_ACCESS_KEY_ID"}
}

// proxySettings returns two Settings: the proxy for an endpoint, and the hosts that the Client reaches without the
// proxy. Each variable has two names, such as HTTPS_PROXY and https_proxy. The one in capitals takes precedence
// (net/http, ProxyFromEnvironment).
func (env Environment) proxySettings(endpoint string) []Setting {
	proxy, direct := env.firstSet("HTTPS_PROXY", "https_proxy"), env.firstSet("NO_PROXY", "no_proxy")
	if strings.HasPrefix(endpoint, "http://") {
		proxy = env.firstSet("HTTP_PROXY", "http_proxy")
	}
	if proxy.value == "" {
		direct.value = "" // NO_PROXY has no effect without a proxy
	}
	return []Setting{{"proxy", withoutUser(proxy.value), proxy.setName()},
		{"hosts without proxy", direct.value, direct.setName()}}
}

// withoutUser removes user and password from the URL of a proxy. It accepts a URL without a scheme.
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

// Unread returns the names of environment variables that are set, and that other AWS programs read. This suite ignores
// these variables.
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
