// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"os"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
)

// credentialsOf returns the credentials in the environment variables. Without these, it returns the credentials of the
// instance's role, which the SDK reads from metadata at the first request. credentialsOf does not support profiles, SSO
// and web identities. For these, the SDK has the package config, which makes the start of each process a millisecond
// slower.
func credentialsOf(m *metadata) sdk.CredentialsProvider {
	if id, secret := processEnv.accessKey(); id != "" {
		return credentials.NewStaticCredentialsProvider(id, secret, os.Getenv("AWS_SESSION_TOKEN"))
	}
	return sdk.NewCredentialsCache(ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = m }))
}

// accessKey returns the ID and the secret of the access key in the environment. If the ID or the secret is missing,
// both results are empty.
func (env Environment) accessKey() (id, secret string) {
	if id, secret = env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"); id == "" || secret == "" {
		return "", ""
	}
	return id, secret
}
