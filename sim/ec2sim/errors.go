// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"net/http"
)

// A refusal is an error answer of EC2. The codes are from the API's page "Error codes for the Amazon EC2 API". The
// messages resemble EC2's messages, so that a search on the internet finds EC2's messages.
type refusal struct{ code, message string }

func (r *refusal) Error() string { return r.code + ": " + r.message }

func refuse(code, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// notFound refuses an ID that does not exist, for example notFound("InvalidSubnetID", "subnet ID", id).
func notFound(code, what, id string) error {
	return refuse(code+".NotFound", "The %s '%s' does not exist", what, id)
}

func invalidValue(value any, parameter, why string) error {
	return refuse("InvalidParameterValue", "Value (%v) for parameter %s is invalid. %s", value, parameter, why)
}

// httpStatus returns the HTTP status of an error code (API: "Error codes", the table "Server errors"). By default,
// the status is 400.
func httpStatus(code string) int {
	switch code {
	case "AuthFailure":
		return http.StatusUnauthorized
	case "UnauthorizedOperation":
		return http.StatusForbidden
	case "DryRunOperation": // in practice; the documentation does not name the status
		return http.StatusPreconditionFailed
	case "InternalError", "InternalFailure", "ServerInternal", "InsufficientAddressCapacity":
		return http.StatusInternalServerError
	case "RequestLimitExceeded", "ServiceUnavailable", "Unavailable":
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}
