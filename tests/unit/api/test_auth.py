"""Tokens: who they stand for, when they stop, and the admin token's file."""

import os
import stat

import pytest

from tercio.api.auth import Authenticator, admin_token, check_role, digest, new_secret
from tercio.errors import UserError
from tercio.model.identity import Principal, Role, Token

ANA = Principal(user="ana", role=Role.USER)


def make_token(secret="s3cret", token_id="tok-1", expires_s=None):
    return Token(token_id=token_id, sha256=digest(secret), principal=ANA, expires_s=expires_s)


def make_auth(tokens=(), now_s=0.0, admin="root-secret"):
    by_id = {token.token_id: token for token in tokens}
    auth = Authenticator(
        admin_secret=admin, tokens=lambda: by_id, now=lambda: now_s, admin_user="root"
    )
    return auth, by_id


def refused(auth, header):
    with pytest.raises(UserError) as caught:
        auth.principal(header)
    assert caught.value.code == "unauthorised"
    assert caught.value.hint
    return caught.value.message


def test_a_token_stands_for_its_principal():
    auth, _ = make_auth([make_token()])
    assert auth.principal("Bearer s3cret") == ANA
    assert auth.principal("bearer s3cret") == ANA


def test_the_admin_token_stands_for_an_admin():
    auth, _ = make_auth()
    assert auth.principal("Bearer root-secret") == Principal(user="root", role=Role.ADMIN)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic s3cret", "s3cret", "Bearer s3cre", "Bearer é"]
)
def test_anything_else_is_refused(header):
    auth, _ = make_auth([make_token()])
    refused(auth, header)


def test_a_revoked_token_stops_at_once():
    auth, by_id = make_auth([make_token()])
    assert auth.principal("Bearer s3cret") == ANA
    del by_id["tok-1"]
    assert "revoked" in refused(auth, "Bearer s3cret")


def test_a_token_id_used_again_for_another_secret_does_not_let_the_old_one_in():
    auth, by_id = make_auth([make_token()])
    auth.principal("Bearer s3cret")
    by_id["tok-1"] = make_token("other")
    refused(auth, "Bearer s3cret")
    assert auth.principal("Bearer other") == ANA


def test_an_expired_token_is_refused():
    auth, _ = make_auth([make_token(expires_s=100.0)], now_s=100.0)
    assert "expired" in refused(auth, "Bearer s3cret")


def test_the_digest_is_not_a_secret_that_lets_in():
    auth, _ = make_auth([make_token()])
    refused(auth, f"Bearer {digest('s3cret')}")


def test_the_admin_token_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "token"
    secret = admin_token(path)
    assert admin_token(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(secret) > 40


def test_an_admin_token_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "token"
    admin_token(path)
    os.chmod(path, 0o640)
    with pytest.raises(UserError, match="read by others"):
        admin_token(path)


def test_an_empty_admin_token_file_is_replaced(tmp_path):
    path = tmp_path / "token"
    path.write_text("\n")
    assert admin_token(path)


def test_secrets_differ():
    assert len({new_secret() for _ in range(50)}) == 50


def test_a_role_includes_those_below_it():
    check_role(Principal(user="a", role=Role.ADMIN), Role.VIEWER)
    with pytest.raises(UserError) as caught:
        check_role(Principal(user="a", role=Role.USER), Role.OPERATOR)
    assert caught.value.code == "forbidden"
