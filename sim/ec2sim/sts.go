// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"encoding/xml"
	"net/http"
	"time"
)

// STS returns a handler for GetCallerIdentity and GetSessionToken of the Security Token Service (AWS STS API
// reference). The URL of the handler belongs in AWS_ENDPOINT_URL_STS. The handler checks no signatures, so every caller
// belongs to the account of the Config.
func (s *Sim) STS() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		const stsNamespace = "https://sts.amazonaws.com/doc/2011-06-15/"
		switch action := r.Form.Get("Action"); action {
		case "GetCallerIdentity":
			writeXML(w, http.StatusOK, xml.Name{Space: stsNamespace, Local: action + "Response"}, &callerIdentity{
				Account: s.cfg.Account, ARN: "arn:aws:iam::" + s.cfg.Account + ":user/person", UserID: "AIDAEC2SIM"})
		case "GetSessionToken":
			writeXML(w, http.StatusOK, xml.Name{Space: stsNamespace, Local: action + "Response"}, &sessionToken{
				AccessKeyID: "ASIAEC2SIM", Secret: "secret of a session", Token: "token of a session",
				Expiration: time.Now().Add(time.Hour).UTC()})
		default:
			w.WriteHeader(http.StatusBadRequest)
			xml.NewEncoder(w).EncodeElement(&stsError{Code: "InvalidAction",
				Message: "The simulator has no action " + action},
				xml.StartElement{Name: xml.Name{Space: stsNamespace, Local: "ErrorResponse"}})
		}
	})
}

type callerIdentity struct {
	Account string `xml:"GetCallerIdentityResult>Account"`
	ARN     string `xml:"GetCallerIdentityResult>Arn"`
	UserID  string `xml:"GetCallerIdentityResult>UserId"`
}

type sessionToken struct {
	AccessKeyID string    `xml:"GetSessionTokenResult>Credentials>AccessKeyId"`
	Secret      string    `xml:"GetSessionTokenResult>Credentials>SecretAccessKey"`
	Token       string    `xml:"GetSessionTokenResult>Credentials>SessionToken"`
	Expiration  time.Time `xml:"GetSessionTokenResult>Credentials>Expiration"`
}

type stsError struct {
	Code    string `xml:"Error>Code"`
	Message string `xml:"Error>Message"`
}
